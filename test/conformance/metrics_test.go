package conformance

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMetrics has some requests counted. That docs/metrics.md has all metrics is tested
// with all of a server, in test/e2e.
func TestMetrics(t *testing.T) {
	tn := startShop(t)
	for _, user := range []string{"alice", "auditor"} {
		_, client := tn.as(user)
		list, err := client.PolicyV1alpha1().AuditResults("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.PolicyV1alpha1().AuditResults("").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		tn.put(kindResult("a", "Pod", "p1", user))
		take(t, w, 1)
	}
	body := tn.do(http.MethodGet, "/metrics", "").body
	for _, name := range []string{"feed_watchers", "feed_max_lag_revisions", "feed_changes_delivered_total", "index_rows", "index_revision"} {
		if !strings.Contains(body, "# TYPE policy_apiserver_"+name+" ") {
			t.Errorf("there is no policy_apiserver_%s", name)
		}
	}
	for _, scope := range []string{"scoped", "unscoped"} {
		if !regexp.MustCompile(`(?m)^policy_apiserver_access_views_total\{scope="` + scope + `"\} [1-9]`).MatchString(body) {
			t.Errorf("no %s view is counted", scope)
		}
	}
}
