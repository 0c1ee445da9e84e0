package review

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// candidate is a candidate of the installed template.
const candidate = "candidatePolicies: [{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: Who, metadata: {name: new}}]\n"

const (
	mayTry      = "create policy.example.io/reviews/candidates /"
	mayTryLocal = "create policy.example.io/localreviews/candidates shop/"
)

// TestRights: candidates take a right of their own, and a scope those to list what it
// reads; what may not be read is not, and is named.
func TestRights(t *testing.T) {
	for _, test := range []struct {
		name, namespace, spec string
		granted               []string
		status                string // of the error
		read, notJudged       []string
		objects               int64
	}{
		{"no candidates", "", candidate + pod, nil, `reviews/candidates.policy.example.io is forbidden: user "alice" cannot create it`, nil, nil, 0},
		{"no local candidates", "shop", candidate + pod, []string{mayTry}, `localreviews/candidates.policy.example.io is forbidden: user "alice" cannot create it in the namespace "shop"`, nil, nil, 0},
		{"everything", "", candidate + "scope: {}", []string{mayTry, "list /pods/ /", "list /nodes/ /"}, "", []string{`nodes in "" by ""`, `pods in "" by ""`}, nil, 4},
		{"without candidates", "", "scope: {labelSelector: {matchLabels: {a: b}}}", []string{"list /pods/ /", "list /nodes/ /"}, "", []string{`nodes in "" by "a=b"`, `pods in "" by "a=b"`}, nil, 4},
		{"some namespaces", "", candidate + "scope: {}", []string{mayTry, "list /pods/ shop/", "list /namespaces/ /"}, "", []string{`pods in "shop" by ""`}, []string{
			`Node  Forbidden nodes is forbidden: user "alice" cannot list it: no rule`,
			`Pod other Forbidden pods is forbidden: user "alice" cannot list it in the namespace "other": no rule`,
		}, 1},
		{"some namespaces, without the names of the others", "", candidate + "scope: {kinds: [{kind: Pod}]}", []string{mayTry, "list /pods/ shop/"}, "", []string{`pods in "shop" by ""`}, []string{
			`Pod  Forbidden you may list them in some namespaces only, or in none`,
		}, 1},
		{"nothing", "", candidate + "scope: {namespaces: [shop]}", []string{mayTry, "get /pods/ shop/p"}, "", nil, []string{
			`Pod shop Forbidden pods is forbidden: user "alice" cannot list it in the namespace "shop": no rule`,
		}, 0},
		{"local", "shop", candidate + "scope: {}", []string{mayTryLocal, "list /pods/ shop/"}, "", []string{`pods in "shop" by ""`}, nil, 1},
		{"local, by a right elsewhere", "shop", candidate + "scope: {}", []string{mayTryLocal, "list /pods/ other/"}, "", nil, []string{
			`Pod shop Forbidden pods is forbidden: user "alice" cannot list it in the namespace "shop": no rule`,
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.granted...)
			status, err := w.status(t, test.namespace, test.spec)
			if test.status != "" {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.status) || len(w.read) > 0 {
					t.Errorf("error: %v, read %v", err, w.read)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.read, w.read); diff != "" {
				t.Errorf("what was read (-want +got):\n%s", diff)
			}
			var not []string
			for _, n := range status.Impact.NotJudged {
				not = append(not, fmt.Sprintf("%s %s %s %s", n.Kind, n.Namespace, n.Reason, n.Message))
			}
			slices.Sort(not)
			if diff := cmp.Diff(test.notJudged, not); diff != "" {
				t.Errorf("what was not judged (-want +got):\n%s", diff)
			}
			if status.Impact.Objects != test.objects || status.Impact.Complete != (len(test.notJudged) == 0) || status.Evaluated != test.objects {
				t.Errorf("%+v %+v", status, status.Impact)
			}
		})
	}
	// While rights are not known nothing is read.
	w := newWorld(t)
	w.authorizing = fmt.Errorf("the cluster does not answer")
	status, err := w.status(t, "", "scope: {kinds: [{kind: Node}]}")
	if err != nil || status.Impact.Complete || len(w.read) > 0 || !strings.Contains(status.Impact.NotJudged[0].Message, "the cluster does not answer") {
		t.Errorf("%+v, %v, read %v", status, err, w.read)
	}
}

// TestLimits: a user has two reviews of candidates at a time, all users together four;
// others are not counted.
func TestLimits(t *testing.T) {
	endless := strings.Replace(strings.Split(policies, "\n---\n")[0], "u := input", "count([1 | x := numbers.range(1, 3000)[_]; y := numbers.range(1, 3000)[_]; z := numbers.range(1, 3000)[_]; x + y + z < 0]) > 0; u := input", 1)
	w := newWorld(t, mayTry, "list /pods/ /")
	w.set = policy.Compile(context.Background(), policy.Inputs{}, nil)
	storage := NewREST(w.backend())
	var long v1alpha1.ReviewSpec
	if err := yaml.Unmarshal([]byte(pod), &long); err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{endless, strings.Split(policies, "\n---\n")[1]} {
		data, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		long.CandidatePolicies = append(long.CandidatePolicies, runtime.RawExtension{Raw: data})
	}
	as := func(ctx context.Context, name string) context.Context {
		return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: name})
	}
	try := func(name string, spec v1alpha1.ReviewSpec) error {
		ctx, cancel := context.WithTimeout(as(context.Background(), name), 10*time.Second)
		defer cancel()
		_, err := storage.Create(ctx, &v1alpha1.Review{Spec: spec}, nil, nil)
		return err
	}
	scope := v1alpha1.ReviewSpec{Scope: &v1alpha1.ReviewScope{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	start := func(name string) {
		before := storage.limits.count()
		go func() {
			_, err := storage.Create(as(ctx, name), &v1alpha1.Review{Spec: long}, nil, nil)
			done <- err
		}()
		for deadline := time.Now().Add(20 * time.Second); storage.limits.count() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the review does not start")
			}
		}
	}
	busy := func(err error, want string) {
		t.Helper()
		seconds, ok := apierrors.SuggestsClientDelay(err)
		if !apierrors.IsTooManyRequests(err) || !ok || seconds != busyRetrySeconds || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, after %d seconds", err, seconds)
		}
	}
	start("alice")
	start("alice")
	busy(try("alice", scope), `user "alice" has 2 reviews`)
	if err := try("bob", scope); err != nil {
		t.Errorf("another user: %v", err)
	}
	// The authorizer of the world knows alice only.
	for range 2 {
		leave, err := storage.limits.enter("carol")
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	busy(try("bob", scope), "4 reviews of candidatePolicies")
	busy(localTry(as(context.Background(), "bob"), storage, scope), "4 reviews of candidatePolicies")
	cancel()
	for range 2 {
		if err := <-done; err == nil {
			t.Error("a review that was canceled is answered")
		}
	}
	if err := try("alice", scope); err != nil {
		t.Errorf("after the others: %v", err)
	}
	if n := storage.limits.count(); n != 2 {
		t.Errorf("%d reviews are counted, of two", n)
	}
}

func localTry(ctx context.Context, storage *REST, spec v1alpha1.ReviewSpec) error {
	_, err := storage.Local().Create(genericapirequest.WithNamespace(ctx, "shop"), &v1alpha1.LocalReview{Spec: spec}, nil, nil)
	return err
}

// count of the reviews under way.
func (l *limiter) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// TestScopeEndsBeforeItsRequest: there is time left for the answer.
func TestScopeEndsBeforeItsRequest(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	scope := &v1alpha1.ReviewSpec{Scope: &v1alpha1.ReviewScope{}}
	if d := timeout(ctx, scope); d > 9*time.Second || d < 8*time.Second {
		t.Errorf("of 10 seconds: %v", d)
	}
	if d := timeout(context.Background(), scope); d != scopeDeadline {
		t.Errorf("of a request without a deadline: %v", d)
	}
	if d := timeout(ctx, &v1alpha1.ReviewSpec{}); d != deadline {
		t.Errorf("without a scope: %v", d)
	}
}
