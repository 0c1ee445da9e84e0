package differential

import (
	"testing"

	"policy.example.io/policy-apiserver/test/differential/corpus"
	"policy.example.io/policy-apiserver/test/differential/engine"
)

// BenchmarkEngine is this engine alone on the objects of bench-engine, for profiles. An
// iteration compiles the policies and judges all objects, one after the other.
func BenchmarkEngine(b *testing.B) {
	policies, err := corpus.Default()
	if err != nil {
		b.Fatal(err)
	}
	for name, generate := range map[string]func(uint64, int) (*corpus.Objects, error){"varied": corpus.Varied, "cluster": corpus.Cluster} {
		b.Run(name, func(b *testing.B) {
			objects, err := generate(1, 2000)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				auditor := engine.Compile(b.Context(), policies.Templates, policies.Constraints).Auditor()
				b.StartTimer()
				for _, obj := range objects.Items {
					auditor.Review(b.Context(), obj, objects.Namespace(obj))
				}
			}
			b.ReportMetric(float64(b.N*len(objects.Items))/b.Elapsed().Seconds(), "objects/s")
		})
	}
}
