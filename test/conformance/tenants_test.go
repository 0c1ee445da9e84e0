package conformance

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/apiserver"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
)

// right is to get a resource in a namespace, or in all if that is empty.
type right struct{ namespace, resource string }

const (
	unscoped = "auditresults/unscoped"
	// answersTTL is how long the server uses answers in these tests.
	answersTTL = 300 * time.Millisecond
)

// tenants authenticates users by tokens that are their names, lets all of them read
// everything of the API, and has their rights to other resources.
type tenants struct {
	*server
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer

	mu     sync.Mutex
	rights map[string][]right
	broken bool
	asked  int
}

// startTenants starts a server with scoped views, with changes to its configuration.
// Views ask about everything.
func startTenants(t testing.TB, change ...func(*server, *apiserver.Config)) *tenants {
	tn := &tenants{rights: map[string][]right{}}
	tn.server = start(t, append(change, func(s *server, config *apiserver.Config) {
		tn.authenticator, tn.authorizer = config.Generic.Authentication.Authenticator, config.Generic.Authorization.Authorizer
		config.Generic.Authentication.Authenticator = tn
		config.Generic.Authorization.Authorizer = authorizer.AuthorizerFunc(tn.authorize)
		var err error
		config.Extra.Backend.Access, err = access.New(access.Config{
			Index: s.db, Authorizer: config.Generic.Authorization.Authorizer, Resources: tn, TTL: answersTTL,
		})
		if err != nil {
			t.Fatal(err)
		}
	})...)
	return tn
}

// AuthenticateRequest implements authenticator.Request.
func (tn *tenants) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer user-")
	if !ok {
		return tn.authenticator.AuthenticateRequest(r)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}}, true, nil
}

func (tn *tenants) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetAPIGroup() == v1alpha1.GroupName && a.GetSubresource() == "" || !a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	tn.mu.Lock()
	defer tn.mu.Unlock()
	tn.asked++
	switch {
	case tn.broken:
		return authorizer.DecisionNoOpinion, "", errors.New("secret reason of the webhook")
	case has(tn.rights[a.GetUser().GetName()], a.GetNamespace(), resource):
		return authorizer.DecisionAllow, "", nil
	}
	return tn.authorizer.Authorize(ctx, a)
}

func has(rights []right, namespace, resource string) bool {
	return slices.Contains(rights, right{namespace, resource}) || slices.Contains(rights, right{"", resource})
}

// Resource implements access.Resources.
func (tn *tenants) Resource(gk schema.GroupKind) (schema.GroupVersionResource, bool) {
	return gk.WithVersion("v1").GroupVersion().WithResource(strings.ToLower(gk.Kind) + "s"), true
}

// set sets the rights of a user.
func (tn *tenants) set(name string, rights ...right) {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	tn.rights[name] = rights
}

// sees tells whether a user may see a finding, by the definition.
func (tn *tenants) sees(name string, r *v1alpha1.AuditResult) bool {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	return has(tn.rights[name], r.Namespace, unscoped) || has(tn.rights[name], r.Namespace, strings.ToLower(r.Resource.Kind)+"s")
}

// as returns the configuration and a client of a user.
func (tn *tenants) as(name string) (*rest.Config, *versioned.Clientset) {
	tn.Helper()
	config := rest.AnonymousClientConfig(tn.config)
	config.BearerToken, config.QPS = "user-"+name, -1
	client, err := versioned.NewForConfig(config)
	if err != nil {
		tn.Fatal(err)
	}
	return config, client
}

// kindResult is a finding on an object of a kind.
func kindResult(namespace, kind, name, message string) *v1alpha1.AuditResult {
	r := result(namespace, name, message)
	r.Resource.Kind = kind
	r.Name = strings.ToLower(kind) + "." + name
	r.Labels = map[string]string{"kind": kind}
	return r
}

func kindClusterResult(kind, name string) *v1alpha1.ClusterAuditResult {
	r := kindResult("", kind, name, "x")
	return &v1alpha1.ClusterAuditResult{
		TypeMeta:   metav1.TypeMeta{APIVersion: r.APIVersion, Kind: "ClusterAuditResult"},
		ObjectMeta: r.ObjectMeta,
		Finding:    r.Finding,
	}
}
