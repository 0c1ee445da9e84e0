package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/rows"
)

const (
	asTable        = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata     = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asMetadataList = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// TestTable reads what kubectl get prints.
func TestTable(t *testing.T) {
	s := start(t)
	s.put(podNames(3)...)
	var table metav1.Table
	s.into(s.do(http.MethodGet, root+"/auditresults?limit=2", asTable), &table)
	var columns []string
	for _, column := range table.ColumnDefinitions {
		columns = append(columns, column.Name)
	}
	want := []string{"Name"}
	for _, column := range v1alpha1.ResultColumns() {
		want = append(want, column.Name)
	}
	if diff := cmp.Diff(append(want, "Age"), columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if len(table.Rows) != 2 || table.Continue == "" || table.ResourceVersion != rows.FormatRevision(s.db.Revision()) || table.RemainingItemCount == nil || *table.RemainingItemCount != 1 {
		t.Fatalf("%d rows, %+v", len(table.Rows), table.ListMeta)
	}
	row := table.Rows[0]
	if diff := cmp.Diff([]any{"p000", "fail", "deny", "NeedLabel/owner", "Pod/p000", "", "", "x"}, row.Cells[:len(row.Cells)-1]); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(row.Object.Raw, &object); err != nil || object.Name != "p000" || object.Namespace != "ns0" || object.ResourceVersion == "" {
		t.Errorf("object of the row: %v, %s", err, row.Object.Raw)
	}

	// A page that a client goes on to, and one object.
	next := metav1.Table{}
	s.into(s.do(http.MethodGet, root+"/auditresults?limit=2&continue="+table.Continue, asTable), &next)
	if len(next.Rows) != 1 || next.Continue != "" || next.ResourceVersion != table.ResourceVersion {
		t.Errorf("second page: %d rows, %+v", len(next.Rows), next.ListMeta)
	}
	one := metav1.Table{}
	s.into(s.do(http.MethodGet, root+"/namespaces/ns0/auditresults/p000?includeObject=None", asTable), &one)
	if len(one.Rows) != 1 || len(one.Rows[0].Object.Raw) != 0 || one.Rows[0].Cells[0] != "p000" {
		t.Errorf("one object: %+v", one)
	}
	for _, resource := range []string{"auditsummaries", "clusterauditresults", "auditruns", "constraintsummaries"} {
		empty := metav1.Table{}
		s.into(s.do(http.MethodGet, root+"/"+resource, asTable), &empty)
		if len(empty.Rows) != 0 || len(empty.ColumnDefinitions) < 5 || empty.ResourceVersion == "" {
			t.Errorf("empty table of %s: %+v", resource, empty)
		}
	}
}

// TestColumns reads the rows of all resources, in the narrow output and the wide one.
func TestColumns(t *testing.T) {
	s := start(t)
	finding := result("a", "one", "first line\r\nsecond\tline\n\fend\n")
	finding.Owner = &v1alpha1.OwnerReference{Kind: "Job", Name: "j"}
	finding.LastWriter = &v1alpha1.LastWriter{Manager: "someone"}
	clusterFinding := &v1alpha1.ClusterAuditResult{ObjectMeta: metav1.ObjectMeta{Name: "role"}, Finding: finding.Finding}
	clusterFinding.Result, clusterFinding.Violations, clusterFinding.Message = v1alpha1.ResultError, nil, "no\nverdict"
	summary := &v1alpha1.ConstraintSummary{
		ObjectMeta: metav1.ObjectMeta{Name: "sum"}, EnforcementAction: "warn", State: v1alpha1.SummaryRejected,
		Message: "line 1:\nno such rule", Totals: v1alpha1.SummaryTotals{Fail: 1, Error: 2, Deferred: 3, Evaluated: 4}, LastCompletedRun: "run-1",
	}
	broken := &v1alpha1.AuditRun{
		ObjectMeta: metav1.ObjectMeta{Name: "run-1"}, Phase: v1alpha1.RunPartial, Trigger: v1alpha1.TriggerStartup, Listed: 4, Evaluated: 3, Unchanged: 2, Failed: 1,
		Problems: []v1alpha1.RunProblem{{Subject: "a.yaml", Message: "line 3:\nnot YAML"}, {Subject: "b.yaml", Message: "x"}},
		Kinds:    []v1alpha1.KindRun{{Kind: "Pod"}, {Group: "example.io", Kind: "Widget", Error: "is forbidden"}},
	}
	unlisted := broken.DeepCopy()
	unlisted.Name, unlisted.Problems = "run-2", nil
	counts := &v1alpha1.AuditSummary{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "counts"}, EnforcementAction: "deny",
		Constraint: finding.Constraint, Resource: v1alpha1.KindReference{APIGroup: "apps", Kind: "Deployment"}, Totals: v1alpha1.ResultTotals{Fail: 1, Error: 2, Deferred: 3},
	}
	s.put(finding)
	s.putObjects(clusterFinding, counts, summary, broken, unlisted)
	for resource, want := range map[string]struct {
		narrow, wide string // "Name: value" of the columns, joined
	}{
		"auditresults": {
			"Name: one|Result: fail|Action: deny|Constraint: NeedLabel/owner|Resource: Pod/one|Message: first line second line  end",
			"Owner: Job/j|Last Writer: someone",
		},
		"clusterauditresults": {
			"Name: role|Result: error|Action: deny|Constraint: NeedLabel/owner|Resource: Pod/one|Message: no verdict",
			"Owner: Job/j|Last Writer: someone",
		},
		"auditsummaries": {"Name: counts|Action: deny|Constraint: NeedLabel/owner|Kind: Deployment.apps|Fail: 1|Error: 2|Deferred: 3", ""},
		"constraintsummaries": {
			"Name: sum|Action: warn|State: Rejected|Fail: 1|Error: 2|Deferred: 3|Evaluated: 4|Message: line 1: no such rule",
			"Last Run: run-1",
		},
		"auditruns": {
			"Name: run-1|Phase: Partial|Trigger: Startup|Kinds: 2|Listed: 4|Evaluated: 3|Errors: 1|Problems: 3" +
				"|Name: run-2|Phase: Partial|Trigger: Startup|Kinds: 2|Listed: 4|Evaluated: 3|Errors: 1|Problems: 1",
			"Unchanged: 2|Problem: a.yaml: line 3: not YAML|Unchanged: 2|Problem: Widget.example.io: is forbidden",
		},
	} {
		var table metav1.Table
		s.into(s.do(http.MethodGet, root+"/"+resource, asTable), &table)
		cells := map[int32][]string{}
		for _, row := range table.Rows {
			for i, column := range table.ColumnDefinitions {
				if column.Name != "Age" {
					cells[column.Priority] = append(cells[column.Priority], fmt.Sprintf("%s: %v", column.Name, row.Cells[i]))
				}
			}
		}
		if diff := cmp.Diff(want.narrow, strings.Join(cells[0], "|")); diff != "" {
			t.Errorf("narrow %s (-want +got):\n%s", resource, diff)
		}
		if diff := cmp.Diff(want.wide, strings.Join(cells[1], "|")); diff != "" {
			t.Errorf("wide %s (-want +got):\n%s", resource, diff)
		}
	}
}

// TestWatchRepresentations watches as tables and as metadata: the mark of the end
// of the initial events has to survive both, on every resource.
func TestWatchRepresentations(t *testing.T) {
	s := start(t)
	s.put(result("a", "one", "x"))
	const query = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
	for _, resource := range []string{"auditresults", "auditsummaries", "clusterauditresults", "auditruns", "constraintsummaries"} {
		for _, accept := range []string{"application/json", asTable, asMetadata} {
			got := s.do(http.MethodGet, root+"/"+resource+query, accept)
			var types []string
			marked := false
			for decoder := json.NewDecoder(strings.NewReader(got.body)); decoder.More(); {
				var event struct {
					Type   watch.EventType
					Object runtime.RawExtension
				}
				if err := decoder.Decode(&event); err != nil {
					t.Fatalf("%v: %s", err, got.body)
				}
				types = append(types, string(event.Type))
				raw := event.Object.Raw
				if accept == asTable {
					var table metav1.Table
					if err := json.Unmarshal(raw, &table); err != nil || len(table.Rows) != 1 {
						t.Fatalf("%v: %s", err, raw)
					}
					raw = table.Rows[0].Object.Raw
				}
				var object metav1.PartialObjectMetadata
				if err := json.Unmarshal(raw, &object); err != nil || object.ResourceVersion == "" {
					t.Fatalf("%s of %s: %v: %s", event.Type, resource, err, raw)
				}
				marked = marked || event.Type == watch.Bookmark && object.Annotations[metav1.InitialEventsAnnotationKey] == "true"
			}
			want := []string{"BOOKMARK"}
			if resource == "auditresults" {
				want = []string{"ADDED", "BOOKMARK"}
			}
			if diff := cmp.Diff(want, types); diff != "" || !marked {
				t.Errorf("%s of %s: marked %v: %s", accept, resource, marked, diff)
			}
		}
	}
}

// TestMediaTypes offers JSON to clients that would rather have protobuf.
func TestMediaTypes(t *testing.T) {
	s := start(t)
	s.put(podNames(3)...)
	for accept, want := range map[string]string{
		"application/vnd.kubernetes.protobuf,application/json": `"kind":"AuditResultList"`,
		asMetadataList:     `"kind":"PartialObjectMetadataList"`,
		"application/yaml": "kind: AuditResultList",
	} {
		got := s.do(http.MethodGet, root+"/auditresults?limit=2", accept)
		if got.code != http.StatusOK || !strings.Contains(got.body, want) || !strings.Contains(got.body, "continue") || !strings.Contains(got.body, "remainingItemCount") {
			t.Errorf("%s: %d: %s", accept, got.code, got.body)
		}
	}
	if got := s.do(http.MethodGet, root+"/auditresults", "application/vnd.kubernetes.protobuf"); got.code != http.StatusNotAcceptable {
		t.Errorf("protobuf alone: %d", got.code)
	}
}

// TestMetadataInformer is what garbage collectors and dashboards use. Its client
// asks for protobuf.
func TestMetadataInformer(t *testing.T) {
	s := start(t)
	s.put(podNames(3)...)
	client, err := metadata.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	factory := metadatainformer.NewSharedInformerFactory(client, 0)
	informer := factory.ForResource(v1alpha1.SchemeGroupVersion.WithResource("auditresults")).Informer()
	events := make(chan string, 100)
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { events <- "add " + obj.(*metav1.PartialObjectMetadata).Name },
		DeleteFunc: func(obj any) { events <- "delete " + obj.(*metav1.PartialObjectMetadata).Name },
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer factory.Shutdown()
	defer close(stop)
	factory.Start(stop)
	if !cache.WaitForCacheSync(stop, informer.HasSynced) {
		t.Fatal("the informer does not sync")
	}
	for range 3 {
		<-events
	}
	s.put(result("a", "new", "x"))
	s.delete("a", "new")
	if diff := cmp.Diff([]string{"add new", "delete new"}, []string{<-events, <-events}); diff != "" {
		t.Error(diff)
	}
}
