package monitoring

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v3"
)

const (
	manifests = "../../artifacts/deploy/monitoring"
	docs      = "../../docs"
)

var promql = parser.NewParser(parser.Options{})

// alertRules are those of the manifest, as Prometheus reads them.
func alertRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "prometheusrule.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Spec yaml.Node `yaml:"spec"`
	}
	if err := yaml.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	spec, err := yaml.Marshal(&manifest.Spec)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(spec, false, model.UTF8Validation, promql, slog.New(slog.DiscardHandler))
	if len(errs) > 0 || len(groups.Groups) != 1 {
		t.Fatalf("rules: %v", errs)
	}
	return groups.Groups[0].Rules
}

// TestAlerts loads series, one sample a minute, and evaluates each rule once a minute:
// it fires where it should, as soon as it should, and with everything in order it never
// does.
func TestAlerts(t *testing.T) {
	const fine = `load 1m
	up{job="policy-apiserver"} 1x60
	policy_apiserver_audit_ready 1x60
	policy_apiserver_audit_stalled 0x60
	policy_apiserver_audit_problems 0x60
	policy_apiserver_constraints{state="Partial"} 0x60
	policy_apiserver_constraints{state="Rejected"} 0x60
	policy_apiserver_constraints{state="Current"} 5x60
	policy_apiserver_findings{constraint_kind="Labels",constraint_name="owner",enforcement_action="deny",result="fail"} 7x60
	policy_apiserver_findings{constraint_kind="Labels",constraint_name="owner",enforcement_action="deny",result="error"} 0x60
	policy_apiserver_access_reviews_total{result="error"} 0x60
	policy_apiserver_access_reviews_total{result="allowed"} 0+60x60
	apiserver_audit_error_total{job="policy-apiserver",plugin="buffered"} 0x60
	policy_apiserver_audit_lag_seconds_bucket{le="0.08"} 0+60x60
	policy_apiserver_audit_lag_seconds_bucket{le="20.48"} 0+60x60
	policy_apiserver_audit_lag_seconds_bucket{le="+Inf"} 0+60x60
`
	for _, test := range []struct {
		alert string
		// series in the place of those that have the same name and labels.
		series string
		// after is the minute in which it begins to fire.
		after   int
		summary string
	}{
		{"PolicyApiserverDown", `up{job="policy-apiserver"} 1x10 0x50`, 16, "policy-apiserver is away. Findings are unavailable, and namespaces cannot be deleted."},
		{"PolicyAuditNotReady", `policy_apiserver_audit_ready 0x60`, 15, ""},
		{"PolicyAuditStalled", `policy_apiserver_audit_stalled 0x10 1x50`, 13, ""},
		{"PolicyAuditPartial", `policy_apiserver_constraints{state="Partial"} 0x10 2x50`, 26, ""},
		{"PolicyAuditPartial", `policy_apiserver_audit_problems 0x10 1x50`, 26, ""},
		{"PolicyAuditLag", `policy_apiserver_audit_lag_seconds_bucket{le="0.08"} 0+50x60`, 16, ""},
		{"PolicyRejected", `policy_apiserver_constraints{state="Rejected"} 0x10 3x50`, 21, "3 constraints evaluate nothing, because they or their templates are wrong."},
		{"PolicyErrors", `policy_apiserver_findings{constraint_kind="Labels",constraint_name="owner",enforcement_action="deny",result="error"} 0x10 4x50`, 41, "Labels owner cannot judge 4 objects."},
		{"PolicyAccessErrors", `policy_apiserver_access_reviews_total{result="error"} 0x10 0+1x50`, 22, ""},
		{"PolicyAuditEventsLost", `apiserver_audit_error_total{job="policy-apiserver",plugin="buffered"} 0x10 5x50`, 11, ""},
	} {
		t.Run(test.alert, func(t *testing.T) {
			name := test.series[:strings.LastIndexAny(strings.SplitAfter(test.series, "}")[0], "}")+1]
			if name == "" {
				name, _, _ = strings.Cut(test.series, " ")
			}
			var loaded strings.Builder
			for line := range strings.Lines(fine) {
				if !strings.HasPrefix(line, "\t"+name+" ") {
					loaded.WriteString(line)
				}
			}
			for alert, at := range firing(t, loaded.String()+"\t"+test.series+"\n") {
				switch {
				case alert != test.alert:
					t.Errorf("%s fires too", alert)
				case at.minute != test.after:
					t.Errorf("it fires after %d minutes", at.minute)
				case test.summary != "" && at.summary != test.summary:
					t.Errorf("the summary is %q", at.summary)
				}
			}
			if _, ok := firing(t, loaded.String()+"\t"+test.series+"\n")[test.alert]; !ok {
				t.Error("it does not fire")
			}
		})
	}
	for alert, at := range firing(t, fine) {
		t.Errorf("%s fires after %d minutes though everything is in order", alert, at.minute)
	}
}

// fired is when an alert first fired and what it said.
type fired struct {
	minute  int
	summary string
}

// firing evaluates the rules for an hour.
func firing(t *testing.T, series string) map[string]fired {
	t.Helper()
	storage := promqltest.LoadedStorage(t, series)
	defer storage.Close()
	query := rules.EngineQueryFunc(promqltest.NewTestEngine(t, false, 5*time.Minute, 100_000), storage)
	out := map[string]fired{}
	for _, rule := range alertRules(t) {
		expr, err := promql.ParseExpr(rule.Expr)
		if err != nil {
			t.Fatal(err)
		}
		alerting := rules.NewAlertingRule(rule.Alert, expr, time.Duration(rule.For), 0, labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations),
			labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
		for minute := range 60 {
			if _, err := alerting.Eval(t.Context(), 0, time.Unix(int64(minute)*60, 0), query, &url.URL{}, 0); err != nil {
				t.Fatal(err)
			}
			for _, alert := range alerting.ActiveAlerts() {
				if _, known := out[rule.Alert]; !known && alert.State == rules.StateFiring {
					out[rule.Alert] = fired{minute, alert.Annotations.Get("summary")}
				}
			}
		}
	}
	return out
}

// documented are the metrics of docs/metrics.md, which a test compares with what the
// server serves.
func documented(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(docs, "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(data), -1) {
		names = append(names, match[1])
	}
	if len(names) < 15 {
		t.Fatalf("metrics: %v", names)
	}
	return names
}

// unknown returns the metrics of an expression that are not documented.
func unknown(t *testing.T, expression string, known []string) (names []string) {
	t.Helper()
	expr, err := promql.ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return nil
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			name := strings.TrimSuffix(selector.Name, "_bucket")
			if name != "up" && !slices.Contains(known, name) {
				names = append(names, name)
			}
		}
		return nil
	})
	return names
}

// TestRunbooks has a runbook for each alert, and metrics that exist.
func TestRunbooks(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(docs, "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, rule := range alertRules(t) {
		if rule.Annotations["runbook_url"] != "docs/runbooks.md#"+strings.ToLower(rule.Alert) {
			t.Errorf("%s: the runbook is %s", rule.Alert, rule.Annotations["runbook_url"])
		}
		for _, name := range unknown(t, rule.Expr, documented(t)) {
			t.Errorf("%s: %s is not in docs/metrics.md", rule.Alert, name)
		}
		want = append(want, rule.Alert)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			got = append(got, strings.TrimSpace(heading))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the runbooks are\n%v\nand the alerts\n%v", got, want)
	}
}

// TestDashboard has queries that can be parsed, of metrics that exist.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(manifests, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID    string `json:"uid"`
		Title  string `json:"title"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Type    string `json:"type"`
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				Expr         string `json:"expr"`
				LegendFormat string `json:"legendFormat"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID == "" || dashboard.Title == "" || len(dashboard.Panels) == 0 {
		t.Fatalf("%+v", dashboard)
	}
	places, known := map[string]string{}, documented(t)
	for _, panel := range dashboard.Panels {
		place := fmt.Sprint(panel.GridPos.X, panel.GridPos.Y)
		if other, taken := places[place]; taken || panel.GridPos.X+panel.GridPos.W > 24 || panel.GridPos.H == 0 {
			t.Errorf("%s is at %v, where %q is", panel.Title, panel.GridPos, other)
		}
		places[place] = panel.Title
		if panel.ID == 0 || panel.Type == "" || len(panel.Targets) == 0 {
			t.Errorf("%+v", panel)
		}
		for _, target := range panel.Targets {
			for _, name := range unknown(t, target.Expr, known) {
				t.Errorf("%s: %s is not in docs/metrics.md", panel.Title, name)
			}
			if target.LegendFormat == "" {
				t.Errorf("%s: %s has no legend", panel.Title, target.Expr)
			}
		}
	}
}
