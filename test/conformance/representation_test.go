package conformance

import (
	"encoding/json"
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
	for _, resource := range []string{"clusterauditresults", "auditruns", "constraintsummaries"} {
		empty := metav1.Table{}
		s.into(s.do(http.MethodGet, root+"/"+resource, asTable), &empty)
		if len(empty.Rows) != 0 || len(empty.ColumnDefinitions) < 5 || empty.ResourceVersion == "" {
			t.Errorf("empty table of %s: %+v", resource, empty)
		}
	}
}

// TestWatchRepresentations watches as tables and as metadata: the mark of the end
// of the initial events has to survive both, on every resource.
func TestWatchRepresentations(t *testing.T) {
	s := start(t)
	s.put(result("a", "one", "x"))
	const query = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
	for _, resource := range []string{"auditresults", "clusterauditresults", "auditruns", "constraintsummaries"} {
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
