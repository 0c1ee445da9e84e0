package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/pkg/rows"
)

// TestOptions sends each combination of options of a list and of a watch and compares
// the answer with what a core resource answers.
func TestOptions(t *testing.T) {
	s := start(t)
	s.put(podNames(5)...)
	s.compact()
	old := rows.FormatRevision(s.put(result("a", "old", "x")))
	now := rows.FormatRevision(s.put(result("a", "new", "x")))
	var page metav1.PartialObjectMetadataList
	s.into(s.do(http.MethodGet, root+"/auditresults?limit=2", ""), &page)
	token := url.QueryEscape(page.Continue)
	const (
		ok       = ""
		bad      = "400 BadRequest"
		invalid  = "422 Invalid"
		expired  = "410 Expired"
		tooLarge = "504 Timeout"
	)
	for _, test := range []struct {
		query, want, message string
		items                int // of an answer that is ok
	}{
		{"", ok, "", 7},
		{"resourceVersion=0", ok, "", 7},
		{"resourceVersion=" + old, ok, "", 7},
		{"resourceVersion=1", ok, "", 7}, // not older than that
		{"resourceVersion=" + now + "&resourceVersionMatch=Exact", ok, "", 7},
		{"resourceVersion=" + old + "&resourceVersionMatch=Exact", ok, "", 6},
		{"resourceVersion=" + old + "&resourceVersionMatch=NotOlderThan&limit=3", ok, "", 3},
		{"resourceVersion=0&resourceVersionMatch=NotOlderThan", ok, "", 7},
		{"resourceVersion=0&limit=3", ok, "", 3},
		{"resourceVersion=" + old + "&limit=100", ok, "", 6}, // exact
		{"resourceVersion=1&limit=100", expired, "too old", 0},
		{"resourceVersion=1&resourceVersionMatch=Exact", expired, "too old", 0},
		{"limit=0", ok, "", 7},
		{"limit=-1", ok, "", 7},
		{"limit=7", ok, "", 7},
		{"limit=6", ok, "", 6},
		{"limit=x", bad, "", 0},
		{"continue=" + token, ok, "", 5},
		{"continue=" + token + "&limit=4", ok, "", 4},
		{"continue=" + token + "&resourceVersion=0", ok, "", 5},
		{"continue=" + token + "&resourceVersion=" + now, bad, "specifying resource version is not allowed when using continue", 0},
		{"continue=" + token + "&resourceVersion=" + now + "&resourceVersionMatch=Exact", invalid, "resourceVersionMatch is forbidden when continue is provided", 0},
		{"continue=" + token + "&resourceVersionMatch=Exact", invalid, "resourceVersionMatch is forbidden unless resourceVersion is provided", 0},
		{"continue=x", bad, "continue", 0},
		// A token of a core resource.
		{"continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhL2JcdTAwMDAifQ", bad, "continue", 0},
		{"resourceVersionMatch=Exact", invalid, "resourceVersionMatch is forbidden unless resourceVersion is provided", 0},
		{"resourceVersionMatch=Newest&resourceVersion=" + now, invalid, "supported values", 0},
		{"resourceVersionMatch=Exact&resourceVersion=0", invalid, `forbidden for resourceVersion "0"`, 0},
		{"sendInitialEvents=true", invalid, "sendInitialEvents is forbidden for list", 0},
		{"resourceVersion=x", bad, "invalid resource", 0},
		{"resourceVersion=-1", bad, "invalid resource", 0},
		{"fieldSelector=x", bad, "", 0},
		{"fieldSelector=spec.x%3Dy", bad, "field label not supported", 0},
		{"labelSelector=a%3D%3D%3Db", bad, "", 0},
		{"watch=true&resourceVersion=x", bad, "invalid resource", 0},
		{"watch=true&sendInitialEvents=true", invalid, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan", 0},
		{"watch=true&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=" + now, invalid, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan", 0},
		{"watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + now, invalid, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided", 0},
		{"watch=true&fieldSelector=spec.x%3Dy", bad, "field label not supported", 0},
		{"watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=" + token, invalid, "resourceVersionMatch is forbidden when continue is provided", 0},
	} {
		got := s.do(http.MethodGet, root+"/auditresults?timeoutSeconds=1&"+test.query, "")
		if test.want == ok {
			var list metav1.PartialObjectMetadataList
			if s.into(got, &list); len(list.Items) != test.items || list.ResourceVersion == "" {
				t.Errorf("%s: %d items at %q, want %d", test.query, len(list.Items), list.ResourceVersion, test.items)
			}
			continue
		}
		var status metav1.Status
		if err := json.Unmarshal([]byte(got.body), &status); err != nil {
			t.Errorf("%s: %d: %v: %.300s", test.query, got.code, err, got.body)
			continue
		}
		if got.code != int(status.Code) {
			t.Errorf("%s: the code is %d, and %d in the status", test.query, got.code, status.Code)
		}
		if have := fmt.Sprintf("%d %s", status.Code, status.Reason); have != test.want || !strings.Contains(strings.ToLower(status.Message), strings.ToLower(test.message)) {
			t.Errorf("%s: %s: %s, want %s: %s", test.query, have, status.Message, test.want, test.message)
		}
	}
	// A revision of the future is waited for.
	future := "999999999999999999"
	for _, query := range []string{"resourceVersion=" + future, "resourceVersion=" + future + "&limit=1"} {
		got := s.do(http.MethodGet, root+"/auditresults?"+query, "")
		var status metav1.Status
		if err := json.Unmarshal([]byte(got.body), &status); err != nil {
			t.Fatal(err)
		}
		want := []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
		if fmt.Sprintf("%d %s", status.Code, status.Reason) != tooLarge || cmp.Diff(want, status.Details.Causes) != "" || status.Details.RetryAfterSeconds != 1 {
			t.Errorf("%s: %+v", query, status)
		}
	}
}
