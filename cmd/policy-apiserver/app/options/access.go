package options

import (
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"policy.example.io/policy-apiserver/pkg/access/rbac"
)

// ReviewAuthorizer returns who decides what a user may see, and for how long an answer
// is used. In a cluster it is the cluster, which is asked over a connection and within
// limits of its own: whoever lists much does not hold up the authorization of others.
// The authorizer keeps no answers, because pkg/access does.
func (o *Options) ReviewAuthorizer(config *genericapiserver.RecommendedConfig) (authorizer.UnconditionalAuthorizer, time.Duration, error) {
	if _, ok := o.Directory(); ok {
		return config.Authorization.Authorizer, 0, nil
	}
	uncached := *o.Authorization
	uncached.AllowCacheTTL, uncached.DenyCacheTTL = 0, 0
	var info genericapiserver.AuthorizationInfo
	if err := uncached.ApplyTo(&info); err != nil {
		return nil, 0, fmt.Errorf("authorization of views: %w", err)
	}
	return info.Authorizer, min(o.Authorization.AllowCacheTTL, o.Authorization.DenyCacheTTL), nil
}

// Narrower returns what --scoped-views-narrowing asks for, nil if that is none.
func (o *Options) Narrower() (*rbac.Narrower, error) {
	if _, ok := o.Directory(); ok || o.ScopedViewsNarrowing == narrowingNone {
		return nil, nil
	}
	config, err := o.ClientConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for RBAC: %w", err)
	}
	return rbac.New(client)
}
