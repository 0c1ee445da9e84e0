package vap

import (
	"context"
	"testing"
)

func BenchmarkJudge(b *testing.B) {
	for name, policy := range map[string]string{
		"matched":     forPods + `validations: [{expression: 'object.metadata.labels.app == "web" && namespaceObject.metadata.labels.env == "prod"'}]`,
		"not matched": `matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: ["*"]}]}` + "\n" + never,
	} {
		b.Run(name, func(b *testing.B) {
			binding, subject := bind(b, policy, ""), pod(b)
			want := map[string]Outcome{"matched": Pass, "not matched": NotMatched}[name]
			b.ReportAllocs()
			for b.Loop() {
				if v := binding.Judge(context.Background(), subject, nil); v.Outcome != want {
					b.Fatal(v)
				}
			}
		})
	}
}
