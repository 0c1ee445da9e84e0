// Package conformance tests the API over HTTP on an index that the test writes to.
package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/options"
	"policy.example.io/policy-apiserver/pkg/apiserver"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// server is a running server and the index behind it.
type server struct {
	testing.TB
	db    *index.DB
	now   atomic.Int64 // seconds that the clock of the index is ahead
	ready atomic.Bool
	stale atomic.Bool
	// summarized says that what is written is summarized, as the audit does.
	summarized atomic.Bool
	notice     atomic.Pointer[string] // of changes
	// policies that reviews are answered by, nil while these are loaded.
	policies atomic.Pointer[policies]
	config   *rest.Config
	client   *versioned.Clientset
	http     *http.Client
}

// Ready implements readonly.Readiness.
func (s *server) Ready(index.Table) error {
	if s.ready.Load() {
		return nil
	}
	return errors.New("the first audit is under way")
}

// Notices implements readonly.Readiness.
func (s *server) Notices(t index.Table) []string {
	if notice := s.notice.Load(); notice != nil && t == rows.AuditChanges {
		return []string{*notice}
	}
	return nil
}

// Stalled implements readonly.Readiness.
func (s *server) Stalled() error {
	if s.stale.Load() {
		return errors.New("since noon nothing can be written: disk full")
	}
	return nil
}

// start starts a server, with changes to its configuration.
func start(t testing.TB, change ...func(*server, *apiserver.Config)) *server {
	t.Helper()
	return startWith(t, nil, change...)
}

// startWith starts a server with other options.
func startWith(t testing.TB, set func(*options.Options), change ...func(*server, *apiserver.Config)) *server {
	t.Helper()
	s := &server{TB: t}
	s.ready.Store(true)
	s.db = indextest.MustOpen(t, rows.Schemas(), func(o *index.Options) {
		o.History = time.Minute
		o.Now = func() time.Time { return time.Now().Add(time.Duration(s.now.Load()) * time.Second) }
	})
	opts, err := options.New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	opts.Source, opts.DataDir, opts.SecureServing.BindPort = "dir:"+dir, dir, 0
	opts.WriteKubeconfig = filepath.Join(dir, "kubeconfig")
	if set != nil {
		set(opts)
	}
	if err := opts.Complete(); err != nil {
		t.Fatal(err)
	}
	generic, err := opts.Generic()
	if err != nil {
		t.Fatal(err)
	}
	config := apiserver.Config{Generic: generic, Extra: apiserver.ExtraConfig{
		Backend:  readonly.Backend{Index: s.db, Feed: feed.New(s.db), Readiness: s},
		Reviews:  s.reviews(),
		Observed: s.db,
		Damaged:  s.db.Damaged,
	}}
	for _, fn := range change {
		fn(s, &config)
	}
	srv, err := config.Complete().New()
	if err != nil {
		t.Fatal(err)
	}
	if err := opts.MaybeWriteKubeconfig(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- srv.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	if s.config, err = clientcmd.BuildConfigFromFlags("", opts.WriteKubeconfig); err != nil {
		t.Fatal(err)
	}
	s.config.QPS = -1
	if s.client, err = versioned.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	if s.http, err = rest.HTTPClientFor(s.config); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		response, err := s.http.Get(s.config.Host + "/readyz")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return s
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not get ready: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

const root = "/apis/policy.example.io/v1alpha1"

// answer is what a request was answered with.
type answer struct {
	code   int
	header http.Header
	body   string
}

// do sends a request without a client library in between.
func (s *server) do(method, path, accept string) answer {
	s.Helper()
	request, err := http.NewRequest(method, s.config.Host+path, strings.NewReader("{}"))
	if err != nil {
		s.Fatal(err)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := s.http.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// into decodes the body of an answer with code 200.
func (s *server) into(a answer, value any) {
	s.Helper()
	if a.code != http.StatusOK {
		s.Fatalf("%d: %s", a.code, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), value); err != nil {
		s.Fatalf("%v: %s", err, a.body)
	}
}

// result is a finding on a Pod.
func result(namespace, pod, message string) *v1alpha1.AuditResult {
	f := v1alpha1.Finding{
		Constraint:        v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "NeedLabel", Name: "owner"},
		Resource:          v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod},
		EnforcementAction: "deny",
		Result:            v1alpha1.ResultFail,
		Violations:        []v1alpha1.Violation{{Message: message}},
	}
	return &v1alpha1.AuditResult{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy.example.io/v1alpha1", Kind: "AuditResult"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod, UID: v1alpha1.ResultUID(f.Constraint, f.Resource), Labels: map[string]string{"pod": pod}},
		Finding:    f,
	}
}

func (s *server) put(results ...*v1alpha1.AuditResult) uint64 {
	s.Helper()
	objects := make([]metav1.Object, len(results))
	for i, r := range results {
		objects[i] = r
	}
	return s.putObjects(objects...)
}

func (s *server) putObjects(objects ...metav1.Object) uint64 {
	s.Helper()
	revision, err := s.db.Update(context.Background(), func(tx *index.Tx) error {
		for _, object := range objects {
			row, err := rows.Encode(object)
			if err != nil {
				return err
			}
			if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
				return err
			}
		}
		return s.summarize(tx)
	})
	if err != nil {
		s.Fatal(err)
	}
	return revision
}

func (s *server) summarize(tx *index.Tx) error {
	if !s.summarized.Load() {
		return nil
	}
	return rows.Summarize(tx, time.Now())
}

func (s *server) delete(namespace, name string) uint64 {
	s.Helper()
	revision, err := s.db.Update(context.Background(), func(tx *index.Tx) error {
		if err := tx.Delete(rows.AuditResults, index.Key{Namespace: namespace, Name: name}); err != nil {
			return err
		}
		return s.summarize(tx)
	})
	if err != nil {
		s.Fatal(err)
	}
	return revision
}

// compact makes all revisions but the current one unreadable.
func (s *server) compact() {
	s.Helper()
	s.now.Add(120)
	if err := s.db.Compact(context.Background()); err != nil {
		s.Fatal(err)
	}
}

func names(list *v1alpha1.AuditResultList) []string {
	out := []string{}
	for i := range list.Items {
		out = append(out, list.Items[i].Namespace+"/"+list.Items[i].Name)
	}
	return out
}

func podNames(n int) (out []*v1alpha1.AuditResult) {
	for i := range n {
		out = append(out, result(fmt.Sprintf("ns%d", i%3), fmt.Sprintf("p%03d", i), "x"))
	}
	return out
}
