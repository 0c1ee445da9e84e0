package apiserver

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics/legacyregistry"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// TestObserve counts the objects of all resources, for priority and fairness and for
// those who look at the metrics.
func TestObserve(t *testing.T) {
	db := indextest.MustOpen(t, rows.Schemas(), func(o *index.Options) { o.Quota = 1 << 30 })
	revision, err := db.Update(context.Background(), func(tx *index.Tx) error {
		for _, name := range []string{"a", "b"} {
			row, err := rows.Encode(&v1alpha1.ConstraintSummary{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if err != nil {
				return err
			}
			if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tracker := flowcontrolrequest.NewStorageObjectCountTracker()
	observe(db, tracker, processMetrics())
	for resource, want := range map[string]int64{"constraintsummaries": 2, "auditresults": 0, "auditsummaries": 0, "clusterauditresults": 0, "auditruns": 0, "auditchanges": 0, "clusterauditchanges": 0} {
		got, err := tracker.Get(resource + ".policy.example.io")
		if err != nil || got.ObjectCount != want || got.EstimatedAverageObjectSizeBytes == 0 {
			t.Errorf("%s: %+v, %v, want %d objects", resource, got, err, want)
		}
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if name, ok := strings.CutPrefix(family.GetName(), "policy_apiserver_index_"); ok {
			for _, metric := range family.GetMetric() {
				key := name
				for _, label := range metric.GetLabel() {
					key += " " + label.GetValue()
				}
				got[key] = metric.GetGauge().GetValue()
			}
		}
	}
	space := db.Space()
	if space.Used <= 0 || space.Used > space.File || space.Level != index.LevelFine {
		t.Errorf("space: %+v", space)
	}
	for name, want := range map[string]float64{
		"rows constraintsummaries": 2, "rows auditresults": 0,
		"revision": float64(revision), "compacted_revision": float64(revision - 2), "size_bytes": float64(space.File),
		"used_bytes": float64(space.Used), "free_bytes": float64(space.File - space.Used), "history_bytes": 0, "quota_bytes": 1 << 30, "quota_level": 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, want %v", name, value, want)
		}
	}
}
