package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/openapi"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/registry/review"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// bootTimeout is how long readyz waits for the first audit. After that the server
// is ready, so that discovery is reachable, and requests for findings are 503
// until there are some: an unavailable APIService would hold up the deletion of
// every namespace of the cluster.
const bootTimeout = time.Minute

// Config of a Server.
type Config struct {
	Generic *genericapiserver.RecommendedConfig
	Extra   ExtraConfig
}

// ExtraConfig is what this server needs besides the generic one's.
type ExtraConfig struct {
	// Backend that the resources are read from.
	Backend readonly.Backend
	// Observed is the index, for metrics and for priority and fairness.
	Observed Observed
	// Reviews is what reviews are answered from. Its authorizer is that of Generic.
	Reviews review.Backend
	// Damaged returns what is wrong with the index, nil if nothing is.
	Damaged func() error
}

type completedConfig struct {
	generic genericapiserver.CompletedConfig
	extra   *ExtraConfig
}

// CompletedConfig can only be made by Complete.
type CompletedConfig struct {
	*completedConfig
}

// Server is an API server for policy.example.io.
type Server struct {
	Generic *genericapiserver.GenericAPIServer
}

// SetOpenAPI gives a generic config the OpenAPI documents of the API.
func SetOpenAPI(config *genericapiserver.Config, version string) error {
	scheme, _, err := NewScheme()
	if err != nil {
		return err
	}
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = "policy-apiserver"
	config.OpenAPIConfig.Info.Version = version
	config.OpenAPIV3Config.Info.Title = "policy-apiserver"
	config.OpenAPIV3Config.Info.Version = version
	return nil
}

// Complete fills in what can be derived.
func (c *Config) Complete() CompletedConfig {
	build := c.Generic.BuildHandlerChainFunc
	c.Generic.BuildHandlerChainFunc = func(handler http.Handler, generic *genericapiserver.Config) http.Handler {
		return build(readonly.WithStreams(handler), generic)
	}
	return CompletedConfig{&completedConfig{generic: c.Generic.Complete(), extra: &c.Extra}}
}

// New makes the server.
func (c CompletedConfig) New() (*Server, error) {
	scheme, codecs, err := NewScheme()
	if err != nil {
		return nil, err
	}
	generic, err := c.generic.New("policy-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("make the generic API server: %w", err)
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, scheme, runtime.NewParameterCodec(scheme), codecs)
	group.NegotiatedSerializer = readonly.Codec{NegotiatedSerializer: withoutProtobuf{group.NegotiatedSerializer}}
	storage := map[string]rest.Storage{}
	for _, resource := range Resources() {
		storage[string(resource.Table)] = readonly.NewREST(resource, c.extra.Backend)
	}
	reviews := c.extra.Reviews
	reviews.Authorizer = c.generic.Authorization.Authorizer
	storage["reviews"], storage["localreviews"] = review.NewREST(reviews), review.NewLocalREST(reviews)
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = storage
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, fmt.Errorf("install %s: %w", v1alpha1.GroupName, err)
	}
	if err := addObserver(generic, c.generic.StorageObjectCountTracker, c.extra.Observed, c.extra.Backend.Readiness); err != nil {
		return nil, err
	}
	if err := c.addHealthChecks(generic); err != nil {
		return nil, err
	}
	return &Server{Generic: generic}, nil
}

// addHealthChecks adds the checks named index and audit-first-run.
func (c CompletedConfig) addHealthChecks(generic *genericapiserver.GenericAPIServer) error {
	index := healthz.NamedCheck("index", func(*http.Request) error { return c.extra.Damaged() })
	if err := generic.AddHealthChecks(index); err != nil {
		return fmt.Errorf("add health checks: %w", err)
	}
	started := time.Now()
	firstRun := healthz.NamedCheck("audit-first-run", func(*http.Request) error {
		err := c.extra.Backend.Readiness.Ready(rows.AuditResults)
		if err != nil && time.Since(started) < bootTimeout {
			return err
		}
		return nil
	})
	if err := generic.AddReadyzChecks(firstRun); err != nil {
		return fmt.Errorf("add readiness checks: %w", err)
	}
	return nil
}

// Run serves until ctx is done, and then until the requests under way have ended.
// background, which keeps up what is served, runs as long as that; if it ends
// earlier the server ends too.
func (s *Server) Run(ctx context.Context, background func(context.Context) error) error {
	serveCtx, stopServing := context.WithCancel(ctx)
	defer stopServing()
	backgroundCtx, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	done := make(chan error, 1)
	go func() {
		// Without its background the server would serve what is not kept up.
		defer stopServing()
		done <- background(backgroundCtx)
	}()
	err := s.Generic.PrepareRun().RunWithContext(serveCtx)
	stopBackground()
	return errors.Join(err, <-done)
}
