package audit

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// TestLimitsOfFindings cuts what is too large, says so, and keeps the rest as it is.
func TestLimitsOfFindings(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": "shop"}}}
	text := func(n int) string { return strings.Repeat("x", n) }
	details := func(n int) json.RawMessage { return json.RawMessage(`"` + text(n-2) + `"`) }
	many := func(n, message, detail int) (out []policy.Violation) {
		for range n {
			v := policy.Violation{Message: text(message)}
			if detail > 0 {
				v.Details = details(detail)
			}
			out = append(out, v)
		}
		return out
	}
	for name, test := range map[string]struct {
		violations          []policy.Violation
		kept, withDetails   int
		truncated           bool
		firstMessage, total int
	}{
		"small":           {many(3, 100, 100), 3, 3, false, 100, 600},
		"many":            {many(101, 100, 0), 100, 0, true, 100, 10_000},
		"as many":         {many(100, 100, 0), 100, 0, false, 100, 10_000},
		"a long message":  {many(1, 9<<10, 10), 1, 1, true, 8 << 10, 8<<10 + 10},
		"long details":    {many(2, 10, 33<<10), 2, 0, true, 10, 20},
		"together":        {many(100, 8<<10, 0), 32, 0, true, 8 << 10, 256 << 10},
		"details of many": {many(100, 1<<10, 32<<10), 32, 7, true, 1 << 10, 256 << 10},
	} {
		f := newFinding(podKind, obj, &policy.Verdict{Constraint: &policy.Constraint{}, Outcome: policy.Fail, Violations: test.violations})
		total, withDetails := 0, 0
		for _, v := range f.Violations {
			total += len(v.Message)
			if v.Details != nil {
				withDetails++
				total += len(v.Details.Raw)
			}
		}
		if len(f.Violations) != test.kept || withDetails != test.withDetails || f.Truncated != test.truncated || len(f.Violations[0].Message) != test.firstMessage || total > test.total {
			t.Errorf("%s: %d violations, %d with details, %d bytes, truncated: %v; want %+v", name, len(f.Violations), withDetails, total, f.Truncated, struct {
				kept, withDetails, total int
				truncated                bool
			}{test.kept, test.withDetails, test.total, test.truncated})
		}
	}
}
