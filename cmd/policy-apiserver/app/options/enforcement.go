package options

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// Values of --enforcement.
const (
	enforcementOff     = "off"
	enforcementWebhook = "webhook"
)

const (
	// serviceAccountNamespaceFile has the namespace of a Pod.
	serviceAccountNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	// defaultNamespace is where artifacts/deploy installs the server.
	defaultNamespace = "policy-system"
)

// exemptPattern is what may be exempted: names of namespaces with an asterisk in front,
// behind, or both.
var exemptPattern = regexp.MustCompile(`^\*?[a-z0-9-]+\*?$`)

// EnforcementOptions are the flags of the admission webhook.
type EnforcementOptions struct {
	// Mode is off or webhook.
	Mode string
	// Port that admission reviews are taken on, at the address of --bind-address. 0 means
	// any that is free.
	Port int
	// ClientCAFile has the CAs of the clients that may call; empty lets everyone.
	ClientCAFile string
	// ClientNames are the common names that their certificates may have; any if empty.
	ClientNames []string
	// ExemptNamespaces are patterns of namespaces in which nothing is judged.
	ExemptNamespaces []string
}

func newEnforcementOptions() *EnforcementOptions {
	return &EnforcementOptions{Mode: enforcementOff, Port: 9443, ExemptNamespaces: []string{"kube-system"}}
}

func (o *EnforcementOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Mode, "enforcement", o.Mode, "What is done about violations when objects are created or changed: off, nothing; webhook, what the constraints say, by a validating admission webhook.")
	fs.IntVar(&o.Port, "enforcement-port", o.Port, "Port of the admission webhook, with HTTPS and the certificate of --secure-port. 0 picks one that is free.")
	fs.StringVar(&o.ClientCAFile, "enforcement-client-ca-file", o.ClientCAFile, "CAs of the client certificates that the kube-apiserver shows to webhooks. Without it everyone who can reach the port may ask: a kube-apiserver shows none unless it is configured to.")
	fs.StringSliceVar(&o.ClientNames, "enforcement-client-names", o.ClientNames, "Common names that these client certificates may have. Any, if it is empty.")
	fs.StringSliceVar(&o.ExemptNamespaces, "enforcement-exempt-namespaces", o.ExemptNamespaces, "Namespaces in which the webhook admits everything, with an asterisk in front or behind for all with that end. The server's own is one always.")
}

func (o *EnforcementOptions) validate() []error {
	var errs []error
	if o.Mode != enforcementOff && o.Mode != enforcementWebhook {
		errs = append(errs, fmt.Errorf("--enforcement=%s is unknown; use %s or %s", o.Mode, enforcementOff, enforcementWebhook))
	}
	if o.Port < 0 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("--enforcement-port=%d must be between 0 and 65535; 0 picks a port that is free", o.Port))
	}
	if len(o.ClientNames) > 0 && o.ClientCAFile == "" {
		errs = append(errs, errors.New("--enforcement-client-names needs --enforcement-client-ca-file: names of certificates that nobody has signed mean nothing"))
	}
	for _, pattern := range o.ExemptNamespaces {
		if !exemptPattern.MatchString(pattern) {
			errs = append(errs, fmt.Errorf("--enforcement-exempt-namespaces: %q is no name of a namespace with an asterisk in front or behind", pattern))
		}
	}
	return errs
}

// ownNamespace returns the namespace that a file has.
func ownNamespace(file string) string {
	data, err := os.ReadFile(file)
	if name := strings.TrimSpace(string(data)); err == nil && name != "" {
		return name
	}
	return defaultNamespace
}

// Enforces tells whether the server is an admission webhook.
func (o *Options) Enforces() bool { return o.Enforcement.Mode == enforcementWebhook }

// ExemptNamespaces are those in which the webhook admits everything.
func (o *Options) ExemptNamespaces() []string {
	return append([]string{o.Namespace}, o.Enforcement.ExemptNamespaces...)
}

// EnforcementServing opens the port of the webhook and returns what it is served with, and
// who may call, nil if everyone may. It comes after Generic, which makes certificates.
func (o *Options) EnforcementServing() (*genericapiserver.SecureServingInfo, authenticator.Request, error) {
	info := &genericapiserver.SecureServingInfo{HTTP2MaxStreamsPerConnection: o.SecureServing.HTTP2MaxStreamsPerConnection}
	var err error
	files := o.SecureServing.ServerCert.CertKey
	info.Cert, err = dynamiccertificates.NewDynamicServingContentFromFiles("enforcement-serving-cert", files.CertFile, files.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of the admission webhook: %w", err)
	}
	var callers authenticator.Request
	if o.Enforcement.ClientCAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("enforcement-client-ca", o.Enforcement.ClientCAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--enforcement-client-ca-file: %w", err)
		}
		info.ClientCA = ca
		names := x509.StaticStringSlice(o.Enforcement.ClientNames)
		callers = x509.NewDynamicCAVerifier(ca.VerifyOptions, x509.NewDynamic(ca.VerifyOptions, x509.CommonNameUserConversion), names)
	}
	address := net.JoinHostPort(o.SecureServing.BindAddress.String(), strconv.Itoa(o.Enforcement.Port))
	info.Listener, o.Enforcement.Port, err = genericoptions.CreateListener("tcp", address, net.ListenConfig{})
	if err != nil {
		return nil, nil, fmt.Errorf("%w; choose another --enforcement-port or --bind-address", err)
	}
	return info, callers, nil
}
