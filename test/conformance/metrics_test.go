package conformance

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMetrics are those that docs/operations.md has: no others, and, after some requests,
// all that do not wait for something to go wrong.
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
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{} // type by name
	for _, match := range regexp.MustCompile("(?m)^\\| `(policy_apiserver_[a-z_]+)` \\| (counter|gauge)(?:, `([a-z]+)`)? \\|").FindAllStringSubmatch(string(text), -1) {
		documented[match[1]] = match[2] + " " + match[3]
	}
	served := map[string]string{}
	body := tn.do(http.MethodGet, "/metrics", "").body
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (policy_apiserver_\S+) (\S+)\n\S+?(?:\{([a-z]+)=.*)? `).FindAllStringSubmatch(body, -1) {
		served[match[1]] = match[2] + " " + match[3]
	}
	for name, kind := range served {
		if documented[name] != kind {
			t.Errorf("%s is a %s, and documented as %q", name, kind, documented[name])
		}
	}
	unserved := []string{"policy_apiserver_feed_watchers_dropped_total", "policy_apiserver_access_watches_ended_total"}
	for name := range documented {
		if _, ok := served[name]; !ok && !strings.Contains(name, "_audit_") && !slices.Contains(unserved, name) {
			t.Errorf("%s is documented and not served", name)
		}
	}
	for _, scope := range []string{"scoped", "unscoped"} {
		if !regexp.MustCompile(`(?m)^policy_apiserver_access_views_total\{scope="` + scope + `"\} [1-9]`).MatchString(body) {
			t.Errorf("no %s view is counted", scope)
		}
	}
}
