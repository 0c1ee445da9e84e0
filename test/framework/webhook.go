package framework

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// WebhookConfiguration is that of artifacts/deploy/enforcement, with the CA of the
// server's certificate, and for the port on which the server of this host takes admission
// reviews, or another one if port is not 0.
func (s *Server) WebhookConfiguration(port int) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	data, err := os.ReadFile(filepath.Join(DeployDir(), "enforcement", "validatingwebhookconfiguration.yaml"))
	if err != nil {
		return nil, err
	}
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := yaml.UnmarshalStrict(data, config); err != nil {
		return nil, err
	}
	if len(config.Webhooks) != 1 || config.Webhooks[0].ClientConfig.Service == nil {
		return nil, fmt.Errorf("there are %d webhooks, want one of a Service", len(config.Webhooks))
	}
	client := &config.Webhooks[0].ClientConfig
	if port == 0 {
		port = s.webhookPort
	}
	number := int32(port)
	client.Service.Port = &number
	// The certificate may have been renewed.
	bundle, err := s.cp.Kubectl("", "get", "apiservice", "v1alpha1.policy.example.io", "-o", "jsonpath={.spec.caBundle}")
	if err != nil {
		return nil, err
	}
	client.CABundle, err = base64.StdEncoding.DecodeString(bundle)
	return config, err
}

// Manifest of an object.
func Manifest(object any) (string, error) {
	data, err := json.Marshal(object)
	return strings.TrimSpace(string(data)), err
}

// WebhookAddress is where the server takes admission reviews.
func (s *Server) WebhookAddress() string { return fmt.Sprintf("127.0.0.1:%d", s.webhookPort) }
