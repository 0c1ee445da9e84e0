package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	baseversion "k8s.io/component-base/version"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/version"
)

// TestDiscovery compares what clients are told of the resources, in both formats
// of discovery.
func TestDiscovery(t *testing.T) {
	s := start(t)
	resource := func(name, singular, kind, short string, namespaced bool) metav1.APIResource {
		return metav1.APIResource{
			Name: name, SingularName: singular, Kind: kind, Namespaced: namespaced,
			ShortNames: []string{short}, Categories: []string{"policy"}, Verbs: metav1.Verbs{"get", "list", "watch"},
		}
	}
	want := []metav1.APIResource{
		resource("auditchanges", "auditchange", "AuditChange", "ach", true),
		resource("auditresults", "auditresult", "AuditResult", "ar", true),
		resource("auditruns", "auditrun", "AuditRun", "arun", false),
		resource("auditsummaries", "auditsummary", "AuditSummary", "asum", true),
		resource("clusterauditchanges", "clusterauditchange", "ClusterAuditChange", "cach", false),
		resource("clusterauditresults", "clusterauditresult", "ClusterAuditResult", "car", false),
		resource("constraintsummaries", "constraintsummary", "ConstraintSummary", "csum", false),
		{Name: "localreviews", SingularName: "localreview", Kind: "LocalReview", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		{Name: "reviews", SingularName: "review", Kind: "Review", Verbs: metav1.Verbs{"create"}},
	}
	var legacy metav1.APIResourceList
	s.into(s.do(http.MethodGet, root, "application/json"), &legacy)
	if diff := cmp.Diff(want, legacy.APIResources); diff != "" {
		t.Errorf("%s (-want +got):\n%s", root, diff)
	}
	_, aggregated, err := s.client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	if len(aggregated) != 1 || aggregated[0].GroupVersion != v1alpha1.SchemeGroupVersion.String() {
		t.Fatalf("groups: %v", aggregated)
	}
	if diff := cmp.Diff(want, aggregated[0].APIResources); diff != "" {
		t.Errorf("aggregated discovery (-want +got):\n%s", diff)
	}
}

// TestVersion has the version of the program, which kubectl can parse, and the
// Kubernetes version that the libraries emulate.
func TestVersion(t *testing.T) {
	s := start(t)
	var info apimachineryversion.Info
	s.into(s.do(http.MethodGet, "/version", ""), &info)
	parsed, err := utilversion.ParseSemantic(info.GitVersion)
	if err != nil {
		t.Fatal(err)
	}
	if info.GitVersion != version.Get() || info.Major != fmt.Sprint(parsed.Major()) || info.Minor != fmt.Sprint(parsed.Minor()) {
		t.Errorf("version %s is %#v", version.Get(), info)
	}
	if got := info.EmulationMajor + "." + info.EmulationMinor; got != baseversion.DefaultKubeBinaryVersion {
		t.Errorf("emulates Kubernetes %s, want %s", got, baseversion.DefaultKubeBinaryVersion)
	}
	if info.GitCommit != "" || info.BuildDate != "" {
		t.Errorf("placeholders are left: %#v", info)
	}
}

// TestReadOnly refuses all writes to all resources with 405.
func TestReadOnly(t *testing.T) {
	s := start(t)
	s.put(result("a", "one", "x"))
	for _, collection := range []string{"/namespaces/a/auditresults", "/namespaces/a/auditsummaries", "/clusterauditresults", "/auditruns", "/constraintsummaries", "/namespaces/a/auditchanges", "/clusterauditchanges"} {
		for _, test := range []struct{ method, path string }{
			{http.MethodPost, collection},
			{http.MethodDelete, collection},
			{http.MethodPut, collection + "/one"},
			{http.MethodPatch, collection + "/one"},
			{http.MethodDelete, collection + "/one"},
		} {
			got := s.do(test.method, root+test.path, "")
			if got.code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d: %s", test.method, test.path, got.code, got.body)
			}
		}
	}
	if got := s.do(http.MethodGet, root+"/namespaces/a/auditresults/one/status", ""); got.code != http.StatusNotFound {
		t.Errorf("a subresource: %d", got.code)
	}
}

// TestUnsupportedFields answers 400 and lists what can be selected by.
func TestUnsupportedFields(t *testing.T) {
	s := start(t)
	result := []string{"metadata.name"}
	for _, field := range v1alpha1.ResultFields() {
		result = append(result, field.Path)
	}
	change := []string{"metadata.name"}
	for _, field := range v1alpha1.ChangeFields() {
		change = append(change, field.Path)
	}
	for path, fields := range map[string][]string{
		"/auditchanges":              append([]string{"metadata.namespace"}, change...),
		"/clusterauditchanges":       change,
		"/auditresults":              append([]string{"metadata.namespace"}, result...),
		"/namespaces/a/auditresults": append([]string{"metadata.namespace"}, result...),
		"/clusterauditresults":       result,
		"/auditruns":                 {"metadata.name", "phase", "trigger"},
		"/auditsummaries":            {"metadata.namespace", "metadata.name", "constraint.engine", "constraint.kind", "constraint.name", "resource.apiGroup", "resource.kind", "enforcementAction"},
		"/constraintsummaries":       {"metadata.name", "constraint.engine", "constraint.kind", "constraint.name", "enforcementAction", "state"},
	} {
		for _, watch := range []string{"", "&watch=true"} {
			got := s.do(http.MethodGet, root+path+"?fieldSelector=spec.nodeName%3Dx"+watch, "")
			if got.code != http.StatusBadRequest || !strings.Contains(got.body, "spec.nodeName") {
				t.Errorf("%s%s: %d: %s", path, watch, got.code, got.body)
			}
			for _, field := range fields {
				if !strings.Contains(got.body, field) {
					t.Errorf("%s%s: the answer does not list %s", path, watch, field)
				}
			}
		}
		for _, field := range fields {
			value := map[string]string{"phase": "Partial", "trigger": "Startup", "result": "error", "state": "Rejected", "type": "opened", "reason": "objectDeleted", "constraint.engine": "Gatekeeper"}[field]
			for _, operator := range []string{"=", "==", "!="} {
				if got := s.do(http.MethodGet, root+path+"?fieldSelector="+field+operator+value, ""); got.code != http.StatusOK {
					t.Errorf("%s by %s%s: %d: %s", path, field, operator, got.code, got.body)
				}
			}
		}
	}
}

// TestFieldValues refuses values that a field never has, on all resources and with
// all operators, and names those that it has: the ones of the API's types.
func TestFieldValues(t *testing.T) {
	s := start(t)
	for _, test := range []struct {
		path, kind string
		values     map[string][]string
	}{
		{"/auditresults", "AuditResult", valuesOf(v1alpha1.ResultFields())},
		{"/namespaces/a/auditresults", "AuditResult", valuesOf(v1alpha1.ResultFields())},
		{"/clusterauditresults", "ClusterAuditResult", valuesOf(v1alpha1.ResultFields())},
		{"/auditsummaries", "AuditSummary", valuesOf(v1alpha1.AuditSummaryFields())},
		{"/auditchanges", "AuditChange", valuesOf(v1alpha1.ChangeFields())},
		{"/clusterauditchanges", "ClusterAuditChange", valuesOf(v1alpha1.ChangeFields())},
		{"/auditruns", "AuditRun", valuesOf(v1alpha1.RunFields())},
		{"/constraintsummaries", "ConstraintSummary", valuesOf(v1alpha1.SummaryFields())},
	} {
		if diff := cmp.Diff(s.enums(test.kind), test.values); diff != "" {
			t.Errorf("values of the fields of %s (-types +table):\n%s", test.path, diff)
		}
		for field, values := range test.values {
			for _, operator := range []string{"=", "==", "!="} {
				selector := root + test.path + "?fieldSelector=" + field + operator
				for _, value := range values {
					if got := s.do(http.MethodGet, selector+value, ""); got.code != http.StatusOK {
						t.Errorf("%s%s: %d: %s", selector, value, got.code, got.body)
					}
				}
				for _, value := range []string{"x", "", strings.ToUpper(values[0]), values[0] + "x"} {
					for _, watch := range []string{"", "&watch=true"} {
						got := s.do(http.MethodGet, selector+value+watch, "")
						var status metav1.Status
						if err := json.Unmarshal([]byte(got.body), &status); err != nil || got.code != http.StatusBadRequest {
							t.Errorf("%s%s%s: %d: %s", selector, value, watch, got.code, got.body)
						}
						for _, want := range append([]string{"field " + field + " of ", fmt.Sprintf("%q", value)}, values...) {
							if !strings.Contains(status.Message, want) {
								t.Errorf("%s%s%s: the answer does not name %s: %s", selector, value, watch, want, status.Message)
							}
						}
					}
				}
			}
		}
	}
	// Gatekeeper lets the action be any text.
	if got := s.do(http.MethodGet, root+"/auditresults?fieldSelector=enforcementAction%3Dblock", ""); got.code != http.StatusOK {
		t.Errorf("a free text: %d: %s", got.code, got.body)
	}
}

// enums returns the values of those fields of a kind that have a set of them, sorted;
// of all kinds but runs, the engine of the constraint is one.
func (s *server) enums(kind string) map[string][]string {
	s.Helper()
	var document struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct {
					Enum []string `json:"enum"`
				} `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	s.into(s.do(http.MethodGet, "/openapi/v3"+root, "application/json"), &document)
	out := map[string][]string{}
	for name, schema := range document.Components.Schemas {
		for property, definition := range schema.Properties {
			switch {
			case definition.Enum == nil:
			case strings.HasSuffix(name, "."+kind):
				out[property] = definition.Enum
			case strings.HasSuffix(name, ".ConstraintReference") && kind != "AuditRun":
				out["constraint."+property] = definition.Enum
			}
		}
	}
	return out
}

// valuesOf returns the same of a table of selectable fields.
func valuesOf[T any](fields []v1alpha1.SelectableField[T]) map[string][]string {
	out := map[string][]string{}
	for _, field := range fields {
		if field.Values != nil {
			out[field.Path] = slices.Sorted(slices.Values(field.Values))
		}
	}
	return out
}
