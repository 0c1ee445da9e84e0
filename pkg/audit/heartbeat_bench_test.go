package audit

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// BenchmarkHeartbeats changes the status of each of 1000 Pods, where no policy reads it and
// where one does. The source, which copies objects, is part of both.
func BenchmarkHeartbeats(b *testing.B) {
	const pods = 1000
	for _, read := range []bool{false, true} {
		b.Run(fmt.Sprintf("read=%v", read), func(b *testing.B) {
			src := newFakeSource()
			seed(b, src)
			if read {
				src.addKind(constraintGroup, "v1beta1", "ReadsStatus", "readsstatus", false)
				src.apply(b, `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: readsstatus}
spec:
  crd: {spec: {names: {kind: ReadsStatus}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package status
      violation[{"msg": "x"}] { input.review.object.status.beat < 0 }
`, `{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: ReadsStatus, metadata: {name: r}, spec: {match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}}}`)
			}
			for i := range pods {
				src.apply(b, pod("shop", "p"+strconv.Itoa(i), "owner: me"))
			}
			h := newMeter(newHarness(b, src))
			h.settled()
			handed := func() float64 { return h.objects("unchanged") + h.objects("evaluated") }
			begin, transactions, beat := handed(), h.work().Transactions, int64(0)
			for b.Loop() {
				beat++
				for i := range pods {
					heartbeat(src, podKind, "shop", "p"+strconv.Itoa(i), beat)
				}
				for handed() < begin+float64(beat)*pods {
					time.Sleep(time.Millisecond)
				}
			}
			b.ReportMetric((h.work().Transactions-transactions)/float64(beat), "transactions/op")
		})
	}
}
