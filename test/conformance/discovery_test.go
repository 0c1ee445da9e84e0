package conformance

import (
	"fmt"
	"net/http"
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
		resource("auditresults", "auditresult", "AuditResult", "ar", true),
		resource("auditruns", "auditrun", "AuditRun", "arun", false),
		resource("clusterauditresults", "clusterauditresult", "ClusterAuditResult", "car", false),
		resource("constraintsummaries", "constraintsummary", "ConstraintSummary", "csum", false),
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
	for _, collection := range []string{"/namespaces/a/auditresults", "/clusterauditresults", "/auditruns", "/constraintsummaries"} {
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
	for path, fields := range map[string][]string{
		"/auditresults":              append([]string{"metadata.namespace"}, result...),
		"/namespaces/a/auditresults": append([]string{"metadata.namespace"}, result...),
		"/clusterauditresults":       result,
		"/auditruns":                 {"metadata.name", "phase", "trigger"},
		"/constraintsummaries":       {"metadata.name", "constraint.kind", "constraint.name", "enforcementAction", "state"},
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
			for _, operator := range []string{"=", "==", "!="} {
				if got := s.do(http.MethodGet, root+path+"?fieldSelector="+field+operator+"x", ""); got.code != http.StatusOK {
					t.Errorf("%s by %s%s: %d: %s", path, field, operator, got.code, got.body)
				}
			}
		}
	}
}
