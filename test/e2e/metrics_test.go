package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/test/framework"
)

// docsDir is the directory of documents.
func docsDir() string { return filepath.Join(framework.DeployDir(), "..", "..", "docs") }

func document(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(docsDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// served are the metrics of a server: the rows of docs/metrics.md without those that
// have no series yet.
func served(text, prefix string) map[string]string {
	type family struct{ kind, help, labels string }
	families := map[string]*family{}
	of := func(name string) *family {
		if families[name] == nil {
			families[name] = &family{}
		}
		return families[name]
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		fields := strings.SplitN(line, " ", 4)
		switch {
		case strings.HasPrefix(line, "# HELP "):
			of(fields[2]).help = regexp.MustCompile(`^\[[A-Z]+\] `).ReplaceAllString(fields[3], "")
		case strings.HasPrefix(line, "# TYPE "):
			of(fields[2]).kind = fields[3]
		case strings.HasPrefix(line, prefix):
			name, labels, _ := strings.Cut(line, "{")
			if family, ok := families[name]; ok {
				var names []string
				for _, match := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(labels, -1) {
					names = append(names, "`"+match[1]+"`")
				}
				family.labels = strings.Join(names, ", ")
			}
		}
	}
	out := map[string]string{}
	for name, f := range families {
		if strings.HasPrefix(name, prefix) {
			out[name] = fmt.Sprintf("| `%s` | %s | %s | %s |", name, f.kind, f.labels, f.help)
		}
	}
	return out
}

// TestMetricsDocumented compares docs/metrics.md with what the server serves after it
// has had something to do.
func TestMetricsDocumented(t *testing.T) {
	trailFixture(t, "E2EMetrics", "e2e-metrics")
	rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|.*$").FindAllStringSubmatch(document(t, "metrics.md"), -1)
	want, others := map[string]string{}, []string{}
	for _, row := range rows {
		if strings.HasPrefix(row[1], "policy_apiserver_") {
			want[row[1]] = row[0]
		} else {
			others = append(others, row[1])
		}
	}
	open, err := client.PolicyV1alpha1().AuditResults("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Stop()
	// Series of these come with events that other tests make.
	later := []string{
		"policy_apiserver_access_watches_ended_total", "apiserver_audit_error_total", "policy_apiserver_feed_watchers_dropped_total",
		"policy_apiserver_admission_request_duration_seconds", "policy_apiserver_admission_requests_total", "policy_apiserver_admission_verdicts_total",
		"policy_apiserver_events_dropped_changes_total", "policy_apiserver_events_events_total",
		"policy_apiserver_export_dropped_changes_total", "policy_apiserver_export_errors_total", "policy_apiserver_export_lines_total",
	}
	eventually(t, 40*time.Second, "metrics", func() error {
		text, err := framework.Metrics(server.Direct())
		if err != nil {
			return err
		}
		got := served(text, "policy_apiserver_")
		for _, name := range later {
			if _, ok := got[name]; !ok && want[name] != "" {
				got[name] = want[name]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("docs/metrics.md differs (-documented +served): %s", diff)
		}
		for _, name := range others {
			if !strings.Contains(text, "# TYPE "+name+" ") && !slices.Contains(later, name) {
				return fmt.Errorf("there is no %s", name)
			}
		}
		return nil
	})
	for name, least := range map[string]float64{
		`policy_apiserver_findings{constraint_kind="E2EMetrics",constraint_name="owner-e2e-metrics",enforcement_action="deny",result="fail"}`: 2,
		`policy_apiserver_constraints{state="Current"}`: 1,
		`policy_apiserver_audit_lag_seconds_count`:      1,
		`policy_apiserver_audit_ready`:                  1,
	} {
		eventually(t, 40*time.Second, name, func() error {
			if value := metric(t, name); value < least {
				return fmt.Errorf("it is %v", value)
			}
			return nil
		})
	}
}

// TestReadyz explains itself.
func TestReadyz(t *testing.T) {
	out := kubectl(t, "get", "--raw", "/apis/policy.example.io")
	if !strings.Contains(out, "v1alpha1") {
		t.Error(out)
	}
	_, status, answer := call(t, server.Direct(), "GET", "/readyz?verbose", "*/*", "")
	if status != 200 {
		t.Fatalf("%d: %s", status, answer)
	}
	for _, check := range []string{"ping", "index", "audit-first-run", "poststarthook/observe-index", "poststarthook/priority-and-fairness-config-consumer", "shutdown"} {
		if !strings.Contains(answer, "[+]"+check+" ok\n") {
			t.Errorf("%s is not ok:\n%s", check, answer)
		}
	}
}
