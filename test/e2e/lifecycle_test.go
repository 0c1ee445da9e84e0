package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// metric returns the sum of the samples that begin with prefix.
func metric(t testing.TB, prefix string) float64 {
	t.Helper()
	value, err := server.Metric(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func summary(t testing.TB, name string) (*v1alpha1.ConstraintSummary, error) {
	t.Helper()
	return client.PolicyV1alpha1().ConstraintSummaries().Get(context.Background(), name, metav1.GetOptions{})
}

func TestFindingsFollowTheCluster(t *testing.T) {
	apply(t, template("E2ELife"), namespace("e2e-life"))
	remove(t, "constrainttemplate/e2elife", "namespace/e2e-life")
	apply(t, constraint("E2ELife", "life-owner", "ConfigMap", "e2e-life", "owner"),
		configMap("e2e-life", "x", "owner: me"))
	eventually(t, 20*time.Second, "first audit", func() error {
		s, err := summary(t, "e2elife.life-owner")
		if err == nil && (s.State != v1alpha1.SummaryCurrent || s.Totals.Evaluated == 0) {
			err = fmt.Errorf("summary: %+v", s)
		}
		return err
	})
	found(t, 20*time.Second, "e2e-life", "life-owner")

	apply(t, configMap("e2e-life", "x", ""))
	found(t, visible, "e2e-life", "life-owner", "ConfigMap/x")
	apply(t, configMap("e2e-life", "x", "owner: you"))
	found(t, visible, "e2e-life", "life-owner")
	kubectl(t, "label", "configmap", "x", "-n", "e2e-life", "owner-")
	found(t, visible, "e2e-life", "life-owner", "ConfigMap/x")
	kubectl(t, "delete", "configmap", "x", "-n", "e2e-life")
	found(t, visible, "e2e-life", "life-owner")

	// Policies, without a restart.
	apply(t, configMap("e2e-life", "z", ""))
	apply(t, constraint("E2ELife", "life-team", "ConfigMap", "e2e-life", "team"))
	found(t, 10*time.Second, "e2e-life", "life-team", "ConfigMap/z")
	kubectl(t, "delete", "e2elife", "life-team")
	found(t, 5*time.Second, "e2e-life", "life-team")
	eventually(t, 5*time.Second, "summary goes", func() error {
		if s, err := summary(t, "e2elife.life-team"); err == nil {
			return fmt.Errorf("there is %s", s.Name)
		}
		return nil
	})

	// A namespace takes its findings along and is not held up.
	found(t, 10*time.Second, "e2e-life", "life-owner", "ConfigMap/z")
	started := time.Now()
	kubectl(t, "delete", "namespace", "e2e-life", "--timeout=30s")
	if took := time.Since(started); took > 15*time.Second {
		t.Errorf("the namespace took %v to go", took)
	}
	found(t, visible, "e2e-life", "life-owner")
}

func TestWhereResultsAre(t *testing.T) {
	apply(t, template("E2EPlace"), namespace("e2e-place"),
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'e2e:place'}\n")
	remove(t, "constrainttemplate/e2eplace", "namespace/e2e-place", "clusterrole/e2e:place")
	apply(t, constraint("E2EPlace", "place", "Namespace, ClusterRole", "e2e-place", "owner"))
	found(t, 20*time.Second, "e2e-place", "place", "Namespace/e2e-place")
	eventually(t, 10*time.Second, "cluster-scoped finding", func() error {
		out, err := cp.Kubectl("", "get", "clusterauditresults", "--field-selector=constraint.name=place,resource.name=e2e:place", "-o", "name")
		if err == nil && len(strings.Fields(out)) != 1 {
			err = fmt.Errorf("found %q", out)
		}
		return err
	})
}

// TestKill kills the server and starts it again: nothing is lost, nothing is
// evaluated again, and watchers can go on.
func TestKill(t *testing.T) {
	ctx := context.Background()
	apply(t, template("E2EKill"), namespace("e2e-kill"))
	remove(t, "constrainttemplate/e2ekill", "namespace/e2e-kill")
	apply(t, constraint("E2EKill", "kill", "Secret", "e2e-kill", "owner"),
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s1, namespace: e2e-kill}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s2, namespace: e2e-kill}\n")
	found(t, 20*time.Second, "e2e-kill", "kill", "Secret/s1", "Secret/s2")
	settled(t)
	results := client.PolicyV1alpha1().AuditResults("")
	before, err := results.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	server.Stop(syscall.SIGKILL)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	after, err := results.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old := map[string]v1alpha1.AuditResult{}
	for _, r := range before.Items {
		old[r.Namespace+"/"+r.Name] = r
	}
	kept := 0
	for _, r := range after.Items {
		o, ok := old[r.Namespace+"/"+r.Name]
		if !ok {
			t.Errorf("%s/%s is new", r.Namespace, r.Name)
			continue
		}
		kept++
		if o.UID != r.UID || !o.FirstObserved.Equal(&r.FirstObserved) || o.ResourceVersion != r.ResourceVersion {
			t.Errorf("%s/%s has changed: %v %v %v, was %v %v %v", r.Namespace, r.Name, r.UID, r.FirstObserved, r.ResourceVersion, o.UID, o.FirstObserved, o.ResourceVersion)
		}
	}
	if kept != len(before.Items) {
		t.Errorf("%d of %d results are there after the restart", kept, len(before.Items))
	}
	settled(t)
	evaluated := metric(t, "policy_apiserver_audit_evaluations_total")
	unchanged := metric(t, `policy_apiserver_audit_objects_total{outcome="unchanged"}`)
	if evaluated != 0 || unchanged == 0 {
		t.Errorf("after the restart %v evaluations were made and %v objects found unchanged", evaluated, unchanged)
	}
	watch, err := results.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s3, namespace: e2e-kill}\n")
	select {
	case event := <-watch.ResultChan():
		r, ok := event.Object.(*v1alpha1.AuditResult)
		if !ok || r.Resource.Name != "s3" {
			t.Errorf("a watch from before the restart got %v %v", event.Type, event.Object)
		}
	case <-time.After(10 * time.Second):
		t.Error("a watch from before the restart gets nothing")
	}
}

// settled waits until no kind is being listed.
func settled(t testing.TB) {
	t.Helper()
	eventually(t, 30*time.Second, "runs end", func() error {
		runs, err := client.PolicyV1alpha1().AuditRuns().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run := range runs.Items {
			if run.Phase == v1alpha1.RunRunning {
				return fmt.Errorf("%s is running", run.Name)
			}
		}
		return nil
	})
	time.Sleep(time.Second) // a change that comes before may still start one
}
