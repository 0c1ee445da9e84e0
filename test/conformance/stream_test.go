package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/options"
)

// TestStreamedList compares the list that is streamed with its other encodings,
// over HTTP.
func TestStreamedList(t *testing.T) {
	s := start(t)
	s.put(podNames(3000)...)
	for _, query := range []string{"", "?limit=1200", "?fieldSelector=metadata.namespace%3Dns1", "?labelSelector=pod%3Dnobody", "?fieldSelector=metadata.name%3D"} {
		path := root + "/auditresults" + query
		streamed := s.do(http.MethodGet, path, "application/json")
		var want, got any
		s.into(streamed, &got)
		pretty := "pretty=true"
		if query == "" {
			pretty = "?" + pretty
		} else {
			pretty = "&" + pretty
		}
		s.into(s.do(http.MethodGet, path+pretty, "application/json"), &want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-pretty +streamed):\n%s", query, diff)
		}
		var list v1alpha1.AuditResultList
		s.into(streamed, &list)
		if list.Items == nil || !strings.HasPrefix(streamed.body, `{"kind":"AuditResultList","apiVersion":"policy.example.io/v1alpha1","metadata":{"resourceVersion":"`) {
			t.Errorf("%s: %.200s", query, streamed.body)
		}
	}
}

// TestCompression compresses what is worth it, as upstream does.
func TestCompression(t *testing.T) {
	s := start(t)
	s.put(podNames(1000)...)
	for query, compressed := range map[string]bool{"": true, "?limit=2": false} {
		want := s.do(http.MethodGet, root+"/auditresults"+query, "")
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+root+"/auditresults"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		// A header that the client has not set itself it would not leave to us.
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := s.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body := io.Reader(response.Body)
		if got := response.Header.Get("Content-Encoding") == "gzip"; got != compressed {
			t.Fatalf("%q: compressed: %v", query, got)
		} else if got {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		got, err := io.ReadAll(body)
		if err != nil || string(got) != want.body {
			t.Errorf("%q: %v, %d bytes, want %d", query, err, len(got), len(want.body))
		}
	}
}

// TestRequestLog has the answer of a list that was streamed.
func TestRequestLog(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitManagedFields: true\nrules: [{level: RequestResponse, resources: [{group: policy.example.io}]}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startWith(t, func(o *options.Options) { o.Audit.PolicyFile, o.Audit.LogOptions.Path = policy, log })
	s.put(podNames(700)...)
	want := s.do(http.MethodGet, root+"/auditresults", "")
	// The event is written when the answer has been sent.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			var event struct {
				Verb, Stage    string
				ResponseObject json.RawMessage
			}
			if err := json.Unmarshal(line, &event); err != nil || event.Verb != "list" || event.Stage != "ResponseComplete" {
				continue // of another request, or half written
			}
			if got := string(event.ResponseObject); got != strings.TrimSpace(want.body) {
				t.Errorf("the answer is logged as %.300s", got)
			}
			return
		}
	}
	t.Error("the list is not logged")
}
