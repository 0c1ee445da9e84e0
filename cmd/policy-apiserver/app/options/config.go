package options

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"policy.example.io/policy-apiserver/pkg/apiserver"
	"policy.example.io/policy-apiserver/pkg/version"
)

// ClientConfig returns the credentials for the cluster.
func (o *Options) ClientConfig() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig is given and there are no in-cluster credentials: %w; give --kubeconfig, or audit manifests with --source=dir:PATH", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	return config, nil
}

// Generic returns the configuration of the generic API server.
func (o *Options) Generic() (*genericapiserver.RecommendedConfig, error) {
	_, codecs, err := apiserver.NewScheme()
	if err != nil {
		return nil, err
	}
	config := genericapiserver.NewRecommendedConfig(codecs)
	if err := apiserver.SetOpenAPI(&config.Config, version.Get()); err != nil {
		return nil, err
	}
	if err := o.ServerRun.ApplyTo(&config.Config); err != nil {
		return nil, err
	}
	apiserver.SetVersion(&config.Config, version.Get())
	if err := o.listen(); err != nil {
		return nil, err
	}
	if _, ok := o.Directory(); ok {
		err = o.applyStandalone(config)
	} else {
		err = o.applyCluster(config)
	}
	if err != nil {
		return nil, err
	}
	if err := o.Audit.ApplyTo(&config.Config); err != nil {
		return nil, fmt.Errorf("auditing of requests: %w", err)
	}
	config.AuditBackend = apiserver.WithoutSecrets(config.AuditBackend)
	return config, nil
}

// listen opens the port, so that --secure-port=0 means any that is free; to
// k8s.io/apiserver it means none at all.
func (o *Options) listen() error {
	address := net.JoinHostPort(o.SecureServing.BindAddress.String(), strconv.Itoa(o.SecureServing.BindPort))
	var err error
	o.SecureServing.Listener, o.SecureServing.BindPort, err = genericoptions.CreateListener("tcp", address, net.ListenConfig{})
	if err != nil {
		return fmt.Errorf("%w; choose another --secure-port or --bind-address", err)
	}
	return nil
}

// applyCluster delegates authentication and authorization to the cluster.
func (o *Options) applyCluster(config *genericapiserver.RecommendedConfig) error {
	if o.SecureServing.ServerCert.CertDirectory == "" {
		o.SecureServing.ServerCert.CertDirectory = filepath.Join(o.DataDir, "pki")
	}
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return fmt.Errorf("make self-signed certificates: %w", err)
	}
	if err := o.SecureServing.ApplyToConfig(&config.Config); err != nil {
		return fmt.Errorf("secure serving: %w", err)
	}
	if err := o.Authentication.ApplyTo(&config.Authentication, config.SecureServing, config.OpenAPIConfig); err != nil {
		return fmt.Errorf("authentication: %w", err)
	}
	if err := o.Authorization.ApplyTo(&config.Authorization); err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	core := &genericoptions.CoreAPIOptions{CoreAPIKubeconfigPath: o.Kubeconfig}
	if err := core.ApplyTo(config); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config.ClientConfig)
	if err != nil {
		return fmt.Errorf("make a client for the cluster: %w", err)
	}
	if err := o.Features.ApplyTo(&config.Config, client, config.SharedInformerFactory); err != nil {
		return fmt.Errorf("features: %w", err)
	}
	return nil
}

// applyStandalone authenticates by the server's own CA and authorizes the
// administrator.
func (o *Options) applyStandalone(config *genericapiserver.RecommendedConfig) error {
	certs := o.standaloneCerts()
	hosts := []string{"localhost", "127.0.0.1"}
	if address := o.SecureServing.BindAddress.String(); !o.SecureServing.BindAddress.IsUnspecified() && !slices.Contains(hosts, address) {
		hosts = append(hosts, address)
	}
	if err := certs.ensure(hosts); err != nil {
		return err
	}
	if o.SecureServing.ServerCert.CertKey.CertFile == "" {
		o.SecureServing.ServerCert.CertKey.CertFile = certs.file("serving.crt")
		o.SecureServing.ServerCert.CertKey.KeyFile = certs.file("serving.key")
	}
	if err := o.SecureServing.ApplyToConfig(&config.Config); err != nil {
		return fmt.Errorf("secure serving: %w", err)
	}
	clientCA, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", certs.caFile())
	if err != nil {
		return fmt.Errorf("read the client CA: %w", err)
	}
	if err := config.Authentication.ApplyClientCert(clientCA, config.SecureServing); err != nil {
		return fmt.Errorf("client certificates: %w", err)
	}
	authentication := authenticatorfactory.DelegatingAuthenticatorConfig{
		ClientCertificateCAContentProvider: clientCA,
		Anonymous:                          o.Authentication.Anonymous,
	}
	if config.Authentication.Authenticator, config.OpenAPIConfig.SecurityDefinitions, err = authentication.New(); err != nil {
		return fmt.Errorf("authentication: %w", err)
	}
	health, err := path.NewAuthorizer([]string{"/healthz", "/readyz", "/livez"})
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	config.Authorization.Authorizer, err = union.New(
		union.NamedAuthorizer{AuthorizerName: "policy.example.io/administrators", Authorizer: authorizerfactory.NewPrivilegedGroups(adminGroup)},
		union.NamedAuthorizer{AuthorizerName: "policy.example.io/health", Authorizer: health},
	)
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	return o.Features.ApplyTo(&config.Config, nil, nil)
}

func (o *Options) standaloneCerts() standaloneCerts {
	return standaloneCerts{dir: filepath.Join(o.DataDir, "pki")}
}

// MaybeWriteKubeconfig writes the file of --write-kubeconfig, if it is given. The
// server must be listening, which it does after Generic.
func (o *Options) MaybeWriteKubeconfig() error {
	if o.WriteKubeconfig == "" {
		return nil
	}
	host := o.SecureServing.BindAddress
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	server := "https://" + net.JoinHostPort(host.String(), strconv.Itoa(o.SecureServing.BindPort))
	if err := o.standaloneCerts().writeKubeconfig(o.WriteKubeconfig, server); err != nil {
		return fmt.Errorf("--write-kubeconfig: %w", err)
	}
	return nil
}
