package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
)

// Namespaces of TestScopeModel that are special. Nobody but the auditor is ever granted
// anything in the vault, and everybody may see ConfigMaps of the square.
const (
	vault  = "vault"
	square = "square"
)

var (
	modelNamespaces = []string{"a", "b", "c", "d", vault}
	modelKinds      = []string{"Pod", "Secret", "Job"}
	modelUsers      = []string{"alice", "bob", "auditor"}
	modelSelectors  = []metav1.ListOptions{
		{},
		{FieldSelector: "resource.kind=Secret"},
		{FieldSelector: "resource.kind!=Secret"},
		{LabelSelector: "kind in (Pod, Job, ConfigMap)"},
		{FieldSelector: "metadata.name=pod.o1"},
		{FieldSelector: "result=error"},
	}
)

// follower keeps a copy of what a user sees of a selection, as client-go does: a list,
// then watches from where it has got to, and a list again when it is told to.
type follower struct {
	testing.TB
	user     string
	client   *versioned.Clientset
	selector metav1.ListOptions
	stream   bool // the list is a watch with initial events

	mu      sync.Mutex
	state   map[string]string // message by namespace/name
	relists int
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		revision, err := f.list(ctx)
		for err == nil {
			revision, err = f.watch(ctx, revision)
		}
		if ctx.Err() == nil && !apierrors.IsResourceExpired(err) {
			f.Errorf("%s: %v", f.user, err)
			return
		}
		f.mu.Lock()
		f.relists++
		f.mu.Unlock()
	}
}

func (f *follower) list(ctx context.Context) (string, error) {
	if f.stream {
		f.reset(map[string]string{})
		return "", nil
	}
	options := f.selector
	options.Limit = 3
	state := map[string]string{}
	for {
		list, err := f.client.PolicyV1alpha1().AuditResults("").List(ctx, options)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			state[list.Items[i].Namespace+"/"+list.Items[i].Name] = f.check(&list.Items[i])
		}
		if options.Continue = list.Continue; list.Continue == "" {
			f.reset(state)
			return list.ResourceVersion, nil
		}
	}
}

func (f *follower) reset(state map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = state
}

// check fails the test if a finding is one that its user must never see.
func (f *follower) check(r *v1alpha1.AuditResult) string {
	if r.Namespace == vault && f.user != "auditor" {
		f.Errorf("%s sees %s of the vault", f.user, r.Name)
	}
	return r.Violations[0].Message
}

// watch follows changes until the watch ends, which is soon, and returns the revision
// to go on from.
func (f *follower) watch(ctx context.Context, revision string) (string, error) {
	options := f.selector
	options.ResourceVersion, options.AllowWatchBookmarks = revision, true
	options.TimeoutSeconds = ptr.To[int64](1)
	if revision == "" {
		options.SendInitialEvents, options.ResourceVersionMatch = ptr.To(true), metav1.ResourceVersionMatchNotOlderThan
	}
	w, err := f.client.PolicyV1alpha1().AuditResults("").Watch(ctx, options)
	if err != nil {
		return "", err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return "", apierrors.FromObject(event.Object)
		}
		r, ok := event.Object.(*v1alpha1.AuditResult)
		if !ok {
			return "", fmt.Errorf("%s %T", event.Type, event.Object)
		}
		revision = r.ResourceVersion
		key := r.Namespace + "/" + r.Name
		f.mu.Lock()
		switch event.Type {
		case watch.Added, watch.Modified:
			f.state[key] = f.check(r)
		case watch.Deleted:
			f.check(r)
			delete(f.state, key)
		}
		f.mu.Unlock()
	}
	if revision == "" {
		return "", apierrors.NewResourceExpired("the watch ended before it began")
	}
	return revision, nil
}

// await waits until the follower's copy is what is wanted.
func (f *follower) await(want map[string]string, what string) {
	f.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for {
		f.mu.Lock()
		diff := cmp.Diff(want, f.state)
		f.mu.Unlock()
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			f.Fatalf("%s: what %s has followed of %q (-want +got):\n%s", what, f.user, f.selector.FieldSelector+f.selector.LabelSelector, diff)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// scopeModel is the naive oracle.
type scopeModel struct {
	*tenants
	findings map[string]*v1alpha1.AuditResult
}

// visible returns what a user sees of a selection.
func (m *scopeModel) visible(user string, selector metav1.ListOptions) map[string]string {
	out := map[string]string{}
	for key, r := range m.findings {
		selected := map[string]bool{
			"":                              true,
			"resource.kind=Secret":          r.Resource.Kind == "Secret",
			"resource.kind!=Secret":         r.Resource.Kind != "Secret",
			"kind in (Pod, Job, ConfigMap)": r.Resource.Kind != "Secret",
			"metadata.name=pod.o1":          r.Name == "pod.o1",
			"result=error":                  r.Result == v1alpha1.ResultError,
		}[selector.FieldSelector+selector.LabelSelector]
		if selected && m.sees(user, r) {
			out[key] = r.Violations[0].Message
		}
	}
	return out
}

// write changes some findings.
func (m *scopeModel) write(random *rand.Rand, round int) {
	for range random.IntN(8) {
		namespace, kind := modelNamespaces[random.IntN(len(modelNamespaces))], modelKinds[random.IntN(len(modelKinds))]
		r := kindResult(namespace, kind, fmt.Sprintf("o%d", random.IntN(4)), fmt.Sprint(round))
		if random.IntN(3) == 0 {
			r.Result = v1alpha1.ResultError
		}
		key := r.Namespace + "/" + r.Name
		if m.findings[key] != nil && random.IntN(3) == 0 {
			m.delete(r.Namespace, r.Name)
			delete(m.findings, key)
			continue
		}
		m.findings[key] = r
		m.put(r)
	}
}

// grant changes the rights of a user.
func (m *scopeModel) grant(random *rand.Rand) {
	user := modelUsers[random.IntN(2)]
	rights := []right{{square, "configmaps"}}
	for range random.IntN(5) {
		rights = append(rights, right{
			modelNamespaces[random.IntN(4)],
			[]string{"pods", "secrets", "jobs", unscoped}[random.IntN(4)],
		})
	}
	m.set(user, rights...)
}

// TestScopeModel changes findings and rights at random, and compares what users list,
// get and follow with what an oracle says.
func TestScopeModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m := &scopeModel{tenants: startTenants(t), findings: map[string]*v1alpha1.AuditResult{}}
	m.summarized.Store(true)
	m.set("auditor", right{"", unscoped})
	for _, user := range modelUsers[:2] {
		m.set(user, right{square, "configmaps"})
	}
	m.put(kindResult(square, "ConfigMap", "mark", "0"))
	m.findings[square+"/configmap.mark"] = kindResult(square, "ConfigMap", "mark", "0")

	followCtx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	var followers []*follower
	counters := map[string]cache.Store{}
	for _, user := range modelUsers {
		_, client := m.as(user)
		counters[user] = cache.NewStore(cache.MetaNamespaceKeyFunc)
		source := cache.NewListWatchFromClient(client.PolicyV1alpha1().RESTClient(), "auditsummaries", "", fields.Everything())
		// Without a backoff of its own it waits the longer the more often rights change.
		reflector := cache.NewReflectorWithOptions(source, &v1alpha1.AuditSummary{}, counters[user], cache.ReflectorOptions{
			Backoff: &wait.Backoff{Duration: 10 * time.Millisecond, Steps: 1},
		})
		wg.Go(func() { reflector.RunWithContext(followCtx) })
	}
	for i, user := range modelUsers {
		_, client := m.as(user)
		for j, selector := range modelSelectors[:4] {
			f := &follower{TB: t, user: user, client: client, selector: selector, stream: (i+j)%2 == 0}
			followers = append(followers, f)
			wg.Go(func() { f.run(followCtx) })
		}
	}
	for round := range 25 {
		what := fmt.Sprintf("seed %d, round %d", seed, round)
		m.write(random, round)
		if random.IntN(2) == 0 {
			m.grant(random)
		}
		m.write(random, round)
		time.Sleep(answersTTL) // an answer may be used for that long
		for _, f := range followers {
			f.await(m.visible(f.user, f.selector), what)
		}
		for _, user := range modelUsers {
			m.compare(t, random, user, what)
			m.compareCounts(t, random, user, what)
			m.awaitCounts(t, user, counters[user], what)
		}
		if t.Failed() {
			return
		}
	}
	relists := map[string]int{}
	for _, f := range followers {
		f.mu.Lock()
		relists[f.user] += f.relists
		f.mu.Unlock()
	}
	t.Logf("lists anew: %v", relists)
	if relists["auditor"] != 0 {
		t.Errorf("the auditor, whose rights never change, lists anew %d times", relists["auditor"])
	}
}

// compare lists and gets as a user.
func (m *scopeModel) compare(t *testing.T, random *rand.Rand, user, what string) {
	_, client := m.as(user)
	options := modelSelectors[random.IntN(len(modelSelectors))]
	options.Limit = int64(random.IntN(6))
	namespace := append(modelNamespaces, "", "")[random.IntN(7)]
	want := []string{}
	for key := range m.visible(user, options) {
		if namespace == "" || strings.HasPrefix(key, namespace+"/") {
			want = append(want, key)
		}
	}
	sort.Strings(want)
	got := []string{}
	for {
		list, err := client.PolicyV1alpha1().AuditResults(namespace).List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			options.Continue, got = "", []string{} // as client-go's pager does
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got = append(got, names(list)...)
		if options.Continue = list.Continue; list.Continue == "" {
			break
		}
		if len(list.Items) == 0 {
			t.Errorf("%s: an empty page is not the last one", what)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: list of %s in %q by %+v (-want +got):\n%s", what, user, namespace, options, diff)
	}
	for key, r := range m.findings {
		_, err := client.PolicyV1alpha1().AuditResults(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if sees := m.sees(user, r); sees && err != nil || !sees && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %s gets %s: %v, may see it: %v", what, user, key, err, sees)
		}
		if random.IntN(4) == 0 {
			break
		}
	}
}
