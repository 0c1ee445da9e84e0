package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/pkg/apiserver"
)

// TestSpans has the spans of a list: deciding what its user may see, reading pages, and
// encoding, each within the one that it is a part of.
func TestSpans(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	tn := startTenants(t, func(_ *server, config *apiserver.Config) { config.Generic.TracerProvider = provider })
	tn.set("alice", right{"ns0", "pods"}, right{"ns1", unscoped})
	tn.set("auditor", right{"", unscoped})
	tn.put(podNames(2000)...)
	for _, test := range []struct {
		user, path, accept string
		// want are spans and, before the colon, the span that they are in.
		want []string
	}{
		{"alice", "/auditresults", "application/json", []string{"List:DecideView", "List:DecideScope", "List:ReadIndex", "List:SerializeObject", "List:EncodeList", "EncodeList:ReadIndex"}},
		{"auditor", "/auditresults", "application/json", []string{"List:DecideView", "List:ReadIndex", "List:EncodeList", "EncodeList:ReadIndex"}},
		{"auditor", "/auditresults?limit=10", "application/json", []string{"List:DecideView", "List:ReadIndex", "List:EncodeList"}},
		{"alice", "/auditresults?limit=10", asTable, []string{"List:DecideView", "List:DecideScope", "List:ReadIndex", "List:SerializeObject"}},
		{"auditor", "/constraintsummaries", "application/json", []string{"List:ReadIndex", "List:EncodeList"}},
		{"alice", "/namespaces/ns0/auditresults/p000", "application/json", []string{"Get:DecideView", "Get:SerializeObject"}},
	} {
		t.Run(test.user+test.path, func(t *testing.T) {
			time.Sleep(answersTTL)
			exporter.Reset()
			if body := tn.get(t, test.user, test.path, test.accept); strings.Contains(body, `"status":"Failure"`) {
				t.Fatal(body)
			}
			var got []string
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if got = nestedSpans(exporter.GetSpans()); !slices.ContainsFunc(test.want, func(span string) bool { return !slices.Contains(got, span) }) {
					break
				}
			}
			for _, span := range test.want {
				if !slices.Contains(got, span) {
					t.Errorf("no span %s in %q", span, got)
				}
			}
		})
	}
	exporter.Reset()
	_, client := tn.as("alice")
	w, err := client.PolicyV1alpha1().AuditResults("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for deadline := time.Now().Add(10 * time.Second); !slices.ContainsFunc(nestedSpans(exporter.GetSpans()), func(span string) bool { return strings.HasSuffix(span, ":ReadIndex") }); {
		if time.Now().After(deadline) {
			t.Fatalf("no span of the initial state in %q", nestedSpans(exporter.GetSpans()))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// nestedSpans returns spans as PARENT:NAME.
func nestedSpans(spans tracetest.SpanStubs) []string {
	names := map[string]string{}
	for _, span := range spans {
		names[span.SpanContext.SpanID().String()] = span.Name
	}
	out := []string{}
	for _, span := range spans {
		out = append(out, names[span.Parent.SpanID().String()]+":"+span.Name)
	}
	return out
}
