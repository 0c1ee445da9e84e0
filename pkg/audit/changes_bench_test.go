package audit

import (
	"context"
	"fmt"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// BenchmarkResolve resolves 10,000 findings in one transaction, without the log and with
// it.
func BenchmarkResolve(b *testing.B) {
	for name, logged := range map[string]bool{"not logged": false, "logged": true} {
		b.Run(name, func(b *testing.B) {
			l := &changeLog{clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), retention: time.Hour, limit: defaultMaxChanges, paused: func() bool { return false }}
			var findings []*rows.Row
			for i := range 10_000 {
				f := v1alpha1.Finding{
					Constraint: v1alpha1.ConstraintReference{Engine: "Gatekeeper", Kind: "K", Name: "c"},
					Resource:   v1alpha1.ResourceReference{APIVersion: "v1", Kind: "Pod", Namespace: "a", Name: fmt.Sprint("p", i)},
					Result:     v1alpha1.ResultFail, Violations: []v1alpha1.Violation{{Message: "label owner is missing"}},
				}
				row, err := rows.Encode(newResult(f, time.Unix(1_600_000_000, 0), time.Unix(1_600_000_000, 0), "run"))
				if err != nil {
					b.Fatal(err)
				}
				findings = append(findings, row)
			}
			update := func(db *index.DB, fn func(tx *index.Tx) error) {
				if _, err := db.Update(context.Background(), fn); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				b.StopTimer()
				db := indextest.MustOpen(b, rows.Schemas())
				update(db, func(tx *index.Tx) error {
					for _, row := range findings {
						if err := l.putFinding(tx, row, v1alpha1.ReasonObjectCreated); err != nil {
							return err
						}
					}
					if logged {
						return l.begin(tx)
					}
					return nil
				})
				b.StartTimer()
				update(db, func(tx *index.Tx) error {
					for _, row := range findings {
						if err := l.deleteFinding(tx, row.Table, row.Key, v1alpha1.ReasonPolicyDeleted); err != nil {
							return err
						}
					}
					return nil
				})
			}
		})
	}
}
