package cluster

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/pkg/source"
)

// resource describes a resource as "plural Kind scope verbs [subresource]".
func resource(group, version, description string) apidiscovery.APIResourceDiscovery {
	f := strings.Fields(description)
	r := apidiscovery.APIResourceDiscovery{
		Resource:     f[0],
		ResponseKind: &metav1.GroupVersionKind{Group: group, Version: version, Kind: f[1]},
		Scope:        apidiscovery.ScopeCluster,
		Verbs:        strings.Split(f[3], ","),
	}
	if f[2] == "namespaced" {
		r.Scope = apidiscovery.ScopeNamespace
	}
	if len(f) > 4 {
		r.Subresources = []apidiscovery.APISubresourceDiscovery{{Subresource: f[4], ResponseKind: r.ResponseKind, Verbs: r.Verbs}}
	}
	return r
}

// group describes an API group: versions in the order of preference, each as a
// version, with a trailing "!" if its discovery is stale, and its resources.
func group(name string, versions ...[]string) apidiscovery.APIGroupDiscovery {
	g := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, v := range versions {
		version, stale := strings.CutSuffix(v[0], "!")
		d := apidiscovery.APIVersionDiscovery{Version: version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		if stale {
			d.Freshness = apidiscovery.DiscoveryFreshnessStale
		}
		for _, description := range v[1:] {
			d.Resources = append(d.Resources, resource(name, version, description))
		}
		g.Versions = append(g.Versions, d)
	}
	return g
}

// discoveryServer answers aggregated discovery, and list and watch of the resources
// that change it.
type discoveryServer struct {
	*httptest.Server
	mu      sync.Mutex
	status  int
	core    []apidiscovery.APIGroupDiscovery
	groups  []apidiscovery.APIGroupDiscovery
	crdSent chan string // events of the watch on CustomResourceDefinitions
}

func newDiscoveryServer(t *testing.T) *discoveryServer {
	s := &discoveryServer{status: http.StatusOK, crdSent: make(chan string)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.Server.CloseClientConnections()
		s.Server.Close()
	})
	return s
}

func (s *discoveryServer) set(groups ...apidiscovery.APIGroupDiscovery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups = groups
}

func (s *discoveryServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status, core, groups := s.status, s.core, s.groups
	s.mu.Unlock()
	switch {
	case r.URL.Path == "/api":
		s.write(w, status, core)
	case r.URL.Path == "/apis":
		s.write(w, status, groups)
	case strings.HasSuffix(r.URL.Path, "/customresourcedefinitions") && r.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") != "" {
			_, _ = w.Write([]byte(`{"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"))
		}
		for {
			w.(http.Flusher).Flush()
			select {
			case event := <-s.crdSent:
				_, _ = w.Write([]byte(event + "\n"))
			case <-r.Context().Done():
				return
			}
		}
	default: // APIServices may not be watched
		writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
	}
}

func (s *discoveryServer) write(w http.ResponseWriter, status int, groups []apidiscovery.APIGroupDiscovery) {
	if status != http.StatusOK {
		writeStatus(w, status, metav1.StatusReasonInternalError, "out of order")
		return
	}
	w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	_ = json.NewEncoder(w).Encode(apidiscovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items:    groups,
	})
}

const all = "get,list,watch,create"

func TestInventory(t *testing.T) {
	server := newDiscoveryServer(t)
	server.core = []apidiscovery.APIGroupDiscovery{group("", []string{
		"v1",
		"pods Pod namespaced " + all + " status",
		"events Event namespaced " + all,
		"namespaces Namespace cluster " + all,
		"bindings Binding namespaced create",
		"componentstatuses ComponentStatus cluster get,list",
	})}
	server.set(
		group("events.k8s.io", []string{"v1", "events Event namespaced " + all}),
		group("policy.example.io", []string{"v1alpha1", "auditresults AuditResult namespaced " + all}),
		group("apps", []string{"v1", "deployments Deployment namespaced " + all + " scale"}),
		group("autoscaling",
			[]string{"v2", "horizontalpodautoscalers HorizontalPodAutoscaler namespaced " + all},
			[]string{"v1", "horizontalpodautoscalers HorizontalPodAutoscaler namespaced " + all, "olds Old cluster " + all}),
		group("broken.io", []string{"v1!"}),
		group("half.io", []string{"v2!"}, []string{"v1", "halves Half cluster " + all}),
	)
	s, err := New(&rest.Config{Host: server.URL}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := s.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, k := range inventory.Kinds {
		scope := "cluster"
		if k.Namespaced {
			scope = "namespaced"
		}
		kinds = append(kinds, strings.Join([]string{k.GroupVersion().String(), k.Kind, k.Resource, scope}, " "))
	}
	want := []string{
		"v1 Namespace namespaces cluster",
		"v1 Pod pods namespaced",
		"apps/v1 Deployment deployments namespaced",
		"autoscaling/v2 HorizontalPodAutoscaler horizontalpodautoscalers namespaced",
		"autoscaling/v1 Old olds cluster",
	}
	var unstreamed []string
	for _, u := range inventory.Unstreamed {
		unstreamed = append(unstreamed, u.GroupVersion().String()+" "+u.Kind.Kind+": "+u.Reason)
	}
	wantUnstreamed := []string{
		"v1 ComponentStatus: its API server cannot watch it, so that changes would not be seen",
		"v1 Event: Events are not audited: they are a log, and no state",
		"events.k8s.io/v1 Event: Events are not audited: they are a log, and no state",
		"policy.example.io/v1alpha1 AuditResult: what this server serves is not audited",
	}
	if diff := cmp.Diff(wantUnstreamed, unstreamed); diff != "" {
		t.Errorf("kinds that are not streamed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
	if len(inventory.FailedGroups) != 2 || inventory.FailedGroups["broken.io"] == nil || inventory.FailedGroups["half.io"] == nil {
		t.Errorf("failed groups: %v", inventory.FailedGroups)
	}

	server.mu.Lock()
	server.status = http.StatusInternalServerError
	server.mu.Unlock()
	if inventory, err := s.Inventory(t.Context()); err == nil {
		t.Errorf("no error but %+v", inventory)
	}
}

func TestRunFollowsDefinitions(t *testing.T) {
	server := newDiscoveryServer(t)
	apps := group("apps", []string{"v1", "deployments Deployment namespaced " + all})
	server.set(apps)
	s, err := New(&rest.Config{Host: server.URL}, Options{tuning: tuning{rediscover: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	changed := func(what string) *source.Inventory {
		t.Helper()
		select {
		case <-s.Changed():
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not signalled", what)
		}
		inventory, err := s.Inventory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return inventory
	}
	changed("the first inventory")

	// Discovery lags behind the definition: the kind comes when the first read after
	// the event is over.
	server.crdSent <- `{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"cars.shop.io","resourceVersion":"2"}}}`
	established := time.AfterFunc(700*time.Millisecond, func() {
		server.set(apps, group("shop.io", []string{"v1", "cars Car namespaced " + all}))
	})
	defer established.Stop()
	start := time.Now()
	inventory := changed("a new kind")
	if !slices.ContainsFunc(inventory.Kinds, func(k source.Kind) bool { return k.Kind == "Car" }) {
		t.Errorf("kinds: %v", inventory.Kinds)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a new kind took %v", took)
	}

	server.set(apps, group("shop.io", []string{"v1!"}))
	if inventory := changed("a failed group"); inventory.FailedGroups["shop.io"] == nil {
		t.Errorf("inventory: %+v", inventory)
	}
}
