package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// table returns one with a narrow and a wide column between NAME and AGE.
func table(t *testing.T, objects ...any) *metav1.Table {
	t.Helper()
	out := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name"}, {Name: "Message"}, {Name: "Owner", Priority: 1}, {Name: "Age"}}}
	for i, object := range objects {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out.Rows = append(out.Rows, metav1.TableRow{
			Cells:  []any{fmt.Sprint("n", i), fmt.Sprint("m", i), "wide", "1s"},
			Object: runtime.RawExtension{Raw: raw},
		})
	}
	return out
}

// serve answers with tables and returns a kubeconfig.
func serve(t *testing.T, tables map[string]*metav1.Table) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := tables[strings.TrimPrefix(r.URL.Path, groupVersion+"/")]
		if answer == nil || r.Header.Get("Accept") != accept || r.URL.Query().Get("includeObject") != "Object" {
			t.Errorf("request for %s with %v", r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: '%s'}}]}", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestRun prints tables and the problems of the newest run.
func TestRun(t *testing.T) {
	problems := func(n int) (out []v1alpha1.RunProblem) {
		for i := range n {
			out = append(out, v1alpha1.RunProblem{Subject: fmt.Sprintf("%d.yaml", i), Message: "not YAML"})
		}
		return out
	}
	old := v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-1"}, Problems: problems(1)}
	newest := v1alpha1.AuditRun{
		ObjectMeta: metav1.ObjectMeta{Name: "run-2"},
		Problems:   problems(1),
		Kinds:      []v1alpha1.KindRun{{Kind: "Pod"}, {Group: "example.io", Kind: "Widget", Error: "is forbidden"}},
	}
	many, clean := newest, v1alpha1.AuditRun{ObjectMeta: metav1.ObjectMeta{Name: "run-3"}}
	many.Problems = problems(21)
	finding := &v1alpha1.AuditResult{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
	for name, test := range map[string]struct {
		tables map[string]*metav1.Table
		want   string
	}{
		"nothing": {
			map[string]*metav1.Table{"auditresults": table(t), "clusterauditresults": table(t), summaries: table(t), runs: table(t)},
			`
no auditresults

no clusterauditresults

no constraintsummaries
no policies were found in DIR; docs/policies.md says what a policy is

no auditruns
`,
		},
		"no problems": {
			map[string]*metav1.Table{"auditresults": table(t, finding), "clusterauditresults": table(t, finding), summaries: table(t, clean), runs: table(t, old, clean)},
			`
NAMESPACE   MESSAGE   AGE
shop        m0        1s

MESSAGE   AGE
m0        1s

NAME   MESSAGE   AGE
n0     m0        1s

NAME   MESSAGE   AGE
n0     m0        1s
n1     m1        1s
`,
		},
		"problems": {
			map[string]*metav1.Table{"auditresults": table(t), "clusterauditresults": table(t), summaries: table(t, clean), runs: table(t, old, newest)},
			`
no auditresults

no clusterauditresults

NAME   MESSAGE   AGE
n0     m0        1s

NAME   MESSAGE   AGE
n0     m0        1s
n1     m1        1s

Problems of run-2:
  0.yaml: not YAML
  Widget.example.io: is forbidden
`,
		},
		"many problems": {
			map[string]*metav1.Table{"auditresults": table(t), "clusterauditresults": table(t), summaries: table(t, clean), runs: table(t, many)},
			`
no auditresults

no clusterauditresults

NAME   MESSAGE   AGE
n0     m0        1s

NAME   MESSAGE   AGE
n0     m0        1s

Problems of run-2:
` + strings.Join(lines(maxProblems), "") + "  and 2 more\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out, progress bytes.Buffer
			if err := run(t.Context(), serve(t, test.tables), "DIR", &out, &progress); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func lines(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("  %d.yaml: not YAML\n", i))
	}
	return out
}
