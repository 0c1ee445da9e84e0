package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/test/framework"
)

var (
	seeds = flag.Int("seeds", 20, "number of seeds to test")
	first = flag.Int64("first", 1, "the first of them")
)

const (
	// steps of a seed.
	steps = 40
	// atOnce is how many seeds are tested at the same time. They mostly wait.
	atOnce = 4
	// convergeWithin is how long the findings may take to be right when the faults end:
	// more than the longest backoff.
	convergeWithin = 3 * time.Minute
)

// setUp starts a control plane with the kind of the constraints.
func setUp(t *testing.T) (*framework.ControlPlane, *framework.Server) {
	t.Helper()
	ctx := context.Background()
	cp, err := framework.StartControlPlane(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	server, err := cp.InstallServer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Kubectl(template, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	// The first server makes the kind of the constraints.
	maker, err := server.NewInstance(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := maker.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = cp.Kubectl("", "wait", "--for=create", "--timeout=60s", "crd/faultlabel.constraints.gatekeeper.sh")
	if err == nil {
		_, err = cp.Kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd/faultlabel.constraints.gatekeeper.sh")
	}
	maker.Stop()
	if err != nil {
		t.Fatalf("%v\n%s", err, maker.Log())
	}
	return cp, server
}

// TestFaults tests the seeds.
func TestFaults(t *testing.T) {
	cp, server := setUp(t)
	t.Run("seeds", func(t *testing.T) {
		slots := make(chan struct{}, atOnce)
		for seed := *first; seed < *first+int64(*seeds); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				testSeed(t, cp, server, seed)
			})
		}
	})
}

// run is a seed that is tested.
type run struct {
	*world
	testing.TB
	proxy    *proxy
	instance *framework.Instance
	client   *versioned.Clientset
	random   *rand.Rand
	events   []string
}

func newRun(t *testing.T, cp *framework.ControlPlane, server *framework.Server, seed int64) *run {
	t.Helper()
	core, err := kubernetes.NewForConfig(cp.Admin)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(cp.Admin)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{world: newWorld(core, dyn, seed), TB: t, random: rand.New(rand.NewSource(-seed))}
	if r.proxy, err = newProxy(cp.Admin, seed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.proxy.Close)
	if r.instance, err = server.NewInstance(t.TempDir(), r.proxy.URL); err != nil {
		t.Fatal(err)
	}
	if r.client, err = versioned.NewForConfig(r.instance.Config); err != nil {
		t.Fatal(err)
	}
	if err := r.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.end(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := r.instance.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.instance.Stop() })
	return r
}

func testSeed(t *testing.T, cp *framework.ControlPlane, server *framework.Server, seed int64) {
	ctx := t.Context()
	r := newRun(t, cp, server, seed)
	for range steps {
		if err := r.step(ctx); err != nil {
			t.Fatal(err)
		}
		r.check(ctx)
		r.trouble()
	}
	r.proxy.end()
	r.converge(ctx, "after the faults", r.client)
	r.compareWithFresh(ctx, server)
	t.Logf("faults of requests: %v; of the server: %v", r.proxy.counts, r.events)
	if t.Failed() {
		t.Log(r.instance.Log())
	}
}

// trouble does something to the server, sometimes.
func (r *run) trouble() {
	r.Helper()
	n := r.random.Intn(30)
	if n > 4 {
		time.Sleep(time.Duration(r.random.Intn(100)) * time.Millisecond)
		return
	}
	r.instance.Kill()
	var err error
	event := "killed"
	switch n {
	case 0:
		event, err = "killed, and the data lost", r.instance.LoseData()
	case 1:
		at := r.random.Float64()
		event, err = fmt.Sprintf("killed, and the index damaged at %.3f", at), r.instance.Damage(at)
		if errors.Is(err, os.ErrNotExist) {
			err = nil // it was killed before it had made one
		}
	}
	r.events = append(r.events, event)
	if err == nil {
		err = r.instance.Start()
	}
	if err != nil {
		r.Fatalf("%v: %v", r.events, err)
	}
}

// check looks at what is served while there are faults. That may be old, and it may be
// nothing, but it is never wrong.
func (r *run) check(ctx context.Context) {
	r.Helper()
	found, err := r.served(ctx, r.client)
	if err != nil {
		if code := apierrors.ReasonForError(err); code != metav1.StatusReasonServiceUnavailable && code != metav1.StatusReasonUnauthorized &&
			code != metav1.StatusReasonForbidden && code != metav1.StatusReasonInternalError {
			r.Errorf("list: %v", err)
		}
		return
	}
	for _, f := range found {
		if !r.couldBeTrue(f) {
			r.Errorf("was never true: %v", f)
		}
	}
}

// served are the findings of the seed that a server serves, sorted.
func (r *run) served(ctx context.Context, client *versioned.Clientset) ([]finding, error) {
	found := []finding{}
	for _, namespace := range r.allNamespaces() {
		list, err := client.PolicyV1alpha1().AuditResults(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, item := range list.Items {
			for _, v := range item.Violations {
				found = append(found, finding{item.Constraint.Name, item.Resource.Namespace, item.Resource.Kind, item.Resource.Name, v.Message})
			}
			if item.Result != v1alpha1.ResultFail {
				r.Errorf("%s/%s is %s: %s", item.Namespace, item.Name, item.Result, item.Message)
			}
		}
	}
	slices.SortFunc(found, compare)
	return found, nil
}

// converge waits until a server serves what is true, and says that it is complete.
func (r *run) converge(ctx context.Context, when string, client *versioned.Clientset) {
	r.Helper()
	want := append([]finding{}, r.expected()...)
	deadline := time.Now().Add(convergeWithin)
	for {
		found, err := r.served(ctx, client)
		diff := cmp.Diff(want, found, cmp.AllowUnexported(finding{}))
		if err == nil && diff == "" {
			err = r.summaries(ctx, client)
		}
		if err == nil && diff == "" {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("%s, after %v: error %v, findings (-want +got):\n%s", when, convergeWithin, err, diff)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// summaries returns an error unless the summaries of the seed's constraints say that all
// is known.
func (r *run) summaries(ctx context.Context, client *versioned.Clientset) error {
	fails := map[string]int64{}
	for _, f := range r.expected() {
		fails[f.constraint]++
	}
	for name := range r.constraints {
		s, err := client.PolicyV1alpha1().ConstraintSummaries().Get(ctx, strings.ToLower(v1alpha1.SummaryName(v1alpha1.ConstraintReference{Kind: "FaultLabel", Name: name})), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s.State != v1alpha1.SummaryCurrent || s.Totals.Fail != fails[name] || s.Totals.Error != 0 {
			return fmt.Errorf("summary of %s: %s, %d fail, want %d, %d errors: %s", name, s.State, s.Totals.Fail, fails[name], s.Totals.Error, s.Message)
		}
	}
	return nil
}

// compareWithFresh has a server with an empty index audit the same.
func (r *run) compareWithFresh(ctx context.Context, server *framework.Server) {
	r.Helper()
	fresh, err := server.NewInstance(r.TempDir(), "")
	if err != nil {
		r.Fatal(err)
	}
	client, err := versioned.NewForConfig(fresh.Config)
	if err != nil {
		r.Fatal(err)
	}
	if err := fresh.Start(); err != nil {
		r.Fatal(err)
	}
	defer fresh.Stop()
	r.converge(ctx, "a fresh audit", client)
	names := func(client *versioned.Clientset) (out []string) {
		for _, namespace := range r.allNamespaces() {
			list, err := client.PolicyV1alpha1().AuditResults(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				r.Fatal(err)
			}
			for i := range list.Items {
				item := &list.Items[i]
				out = append(out, fmt.Sprintln(item.Namespace, item.Name, item.UID, item.Labels, item.Constraint, item.Resource, item.EnforcementAction, item.Result, item.Violations))
			}
		}
		return out
	}
	if diff := cmp.Diff(names(client), names(r.client)); diff != "" {
		r.Errorf("a fresh audit finds (-) and this one has (+):\n%s", diff)
	}
}
