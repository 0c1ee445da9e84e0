package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/test/framework"
)

// proxied starts a server that reaches the cluster through a proxy.
func proxied(t testing.TB, args ...string) (*framework.Proxy, *framework.Beside) {
	t.Helper()
	proxy, err := cp.StartProxy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig, err := proxy.Kubeconfig(cp, strings.ToLower(t.Name()), "policy-system", "policy-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	return proxy, beside(t, kubeconfig, args...)
}

// firstRun waits until the first run of a server has ended.
func firstRun(t testing.TB, b *framework.Beside) *v1alpha1.AuditRun {
	t.Helper()
	var run v1alpha1.AuditRun
	eventually(t, 60*time.Second, "first run", func() error {
		runs, err := b.Client.PolicyV1alpha1().AuditRuns().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run = range runs.Items {
			if run.Phase == v1alpha1.RunRunning {
				return fmt.Errorf("%s is running", run.Name)
			}
		}
		if len(runs.Items) == 0 {
			return fmt.Errorf("there is no run")
		}
		return nil
	})
	return &run
}

// resourceOf returns what a request lists or watches, "" if it does neither.
func resourceOf(r *framework.Request) string {
	parts := strings.Split(strings.TrimPrefix(r.Path, "/"), "/")
	if parts[0] == "api" && len(parts) == 3 || parts[0] == "apis" && len(parts) == 4 {
		return r.Path
	}
	return ""
}

// TestRequestsOfAnAudit counts what the kube-apiserver is asked: to begin with, one list
// or streamed list and one watch a kind; in a steady minute nothing but watches that go
// on, whatever changes; and in a sweep one list a kind.
func TestRequestsOfAnAudit(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes more than a minute")
	}
	apply(t, template("E2ELoad"), namespace("e2e-load"))
	remove(t, "constrainttemplate/e2eload", "namespace/e2e-load")
	apply(t, constraint("E2ELoad", "load", "ConfigMap, Secret, ServiceAccount", "e2e-load", "owner"), configMap("e2e-load", "c", "owner: me"))
	started := time.Now()
	proxy, b := proxied(t)
	firstRun(t, b)
	foundBy(t, b.Client, "e2e-load", "load", "ServiceAccount/default")

	lists, watches := map[string]int{}, map[string]int{}
	for _, r := range proxy.Requests(started) {
		resource := resourceOf(&r)
		switch {
		case resource == "":
		case r.Watch():
			watches[resource]++
			// The policy reads labels, of these kinds.
			if want := strings.HasPrefix(resource, "/api/v1/") && resource != "/api/v1/namespaces"; strings.Contains(r.Accept, "as=PartialObjectMetadata") != want && want {
				t.Errorf("%s is watched as %s, want metadata only", resource, r.Accept)
			}
		default:
			lists[resource]++
		}
	}
	for _, resource := range []string{"/api/v1/configmaps", "/api/v1/secrets", "/api/v1/serviceaccounts"} {
		// The list is the beginning of the watch.
		if lists[resource] != 0 || watches[resource] != 1 {
			t.Errorf("%s: %d lists and %d watches to begin with, want 0 and 1", resource, lists[resource], watches[resource])
		}
	}

	// Whatever else goes on in the cluster, and in this process, is over.
	settledBeside := func() {
		firstRun(t, b)
		before := -1
		eventually(t, 90*time.Second, "quiet", func() error {
			n := len(proxy.Requests(started))
			if n != before {
				before = n
				time.Sleep(5 * time.Second)
				return fmt.Errorf("%d requests by now", n)
			}
			return nil
		})
	}
	settledBeside()
	steady := time.Now()
	for i := range 20 {
		apply(t, configMap("e2e-load", "c", fmt.Sprintf("owner: me-%d", i)))
		time.Sleep(3 * time.Second)
	}
	discovery := 0
	for _, r := range proxy.Requests(steady) {
		switch {
		case r.Path == "/api" || r.Path == "/apis":
			discovery++
		case r.Write() || !r.Watch(): // a watch that has ended goes on
			t.Errorf("in a steady minute: %s", r.String())
		}
	}
	// It is read 15 seconds and a minute after the start, then every five minutes.
	if discovery > 4 {
		t.Errorf("discovery was asked for %d times in a steady minute", discovery)
	}

	begin := time.Now()
	if err := b.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var run v1alpha1.AuditRun
	eventually(t, 30*time.Second, "a sweep", func() error {
		runs, err := b.Client.PolicyV1alpha1().AuditRuns().List(context.Background(), metav1.ListOptions{FieldSelector: "trigger=Sweep"})
		if err != nil {
			return err
		}
		if len(runs.Items) != 1 || runs.Items[0].Phase == v1alpha1.RunRunning {
			return fmt.Errorf("runs: %d", len(runs.Items))
		}
		run = runs.Items[0]
		return nil
	})
	if run.Phase != v1alpha1.RunComplete || run.Differences != 0 || run.Evaluated != 0 || run.Listed == 0 || run.Unchanged != run.Listed {
		t.Errorf("the sweep is %s: listed %d, unchanged %d, evaluated %d, differences %d, %+v", run.Phase, run.Listed, run.Unchanged, run.Evaluated, run.Differences, run.Kinds)
	}
	swept := 0
	for _, r := range proxy.Requests(begin) {
		if resourceOf(&r) != "" && !r.Watch() {
			swept++
		}
	}
	if swept != len(run.Kinds) {
		t.Errorf("%d lists for a sweep of %d kinds", swept, len(run.Kinds))
	}
}

// TestAnOverloadedAPIServer answers lists and watches with 429 for a while. The audit
// waits as long as it is told to, and is complete in the end.
func TestAnOverloadedAPIServer(t *testing.T) {
	apply(t, template("E2EBusy"), namespace("e2e-busy"))
	remove(t, "constrainttemplate/e2ebusy", "namespace/e2e-busy")
	apply(t, constraint("E2EBusy", "busy", "ConfigMap", "e2e-busy", "owner"), configMap("e2e-busy", "old", ""))
	proxy, b := proxied(t)
	firstRun(t, b)
	foundBy(t, b.Client, "e2e-busy", "busy", "ConfigMap/old")
	b.Stop()
	apply(t, configMap("e2e-busy", "c", ""))
	const retryAfter = 2 * time.Second
	proxy.Refuse(func(r *framework.Request, w http.ResponseWriter) bool {
		if r.Path != "/api/v1/configmaps" {
			return false
		}
		w.Header().Set("Retry-After", fmt.Sprint(int(retryAfter.Seconds())))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429, "details": {"retryAfterSeconds": 2}}`))
		return true
	})
	begin := time.Now()
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	refused := func() (out []framework.Request) {
		for _, r := range proxy.Requests(begin) {
			if r.Path == "/api/v1/configmaps" {
				out = append(out, r)
			}
		}
		return out
	}
	eventually(t, 60*time.Second, "several requests", func() error {
		if n := len(refused()); n < 4 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	requests := refused()
	for i := range requests[1:] {
		// Headers are sent when the request is read; half a second is for that.
		if wait := requests[i+1].Time.Sub(requests[i].Time); wait < retryAfter-500*time.Millisecond {
			t.Errorf("request %d came %v after the one before, which was told to wait %v", i+1, wait, retryAfter)
		}
	}
	foundBy(t, b.Client, "e2e-busy", "busy", "ConfigMap/old") // what is known is served
	proxy.Refuse(nil)
	foundBy(t, b.Client, "e2e-busy", "busy", "ConfigMap/c", "ConfigMap/old")
}

// TestAnExpiredWatch resumes its own kind only.
func TestAnExpiredWatch(t *testing.T) {
	apply(t, template("E2EGone"), namespace("e2e-gone"))
	remove(t, "constrainttemplate/e2egone", "namespace/e2e-gone")
	apply(t, constraint("E2EGone", "gone", "ConfigMap, Secret", "e2e-gone", "owner"), configMap("e2e-gone", "old", ""))
	proxy, b := proxied(t)
	firstRun(t, b)
	foundBy(t, b.Client, "e2e-gone", "gone", "ConfigMap/old")
	b.Stop()
	var gone atomic.Int32
	proxy.Refuse(func(r *framework.Request, w http.ResponseWriter) bool {
		if r.Path != "/api/v1/configmaps" || gone.Add(1) > 3 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}`))
		return true
	})
	begin := time.Now()
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	apply(t, configMap("e2e-gone", "c", ""))
	foundBy(t, b.Client, "e2e-gone", "gone", "ConfigMap/c", "ConfigMap/old")
	secrets := 0
	for _, r := range proxy.Requests(begin) {
		if r.Path == "/api/v1/secrets" {
			secrets++
		}
	}
	if secrets != 1 {
		t.Errorf("Secrets were asked for %d times, want once", secrets)
	}
}
