package conformance

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// changeOf is one of a finding on an object of a kind.
func changeOf(namespace, kind, name string, t v1alpha1.ChangeType, at time.Time) *v1alpha1.AuditChange {
	r := kindResult(namespace, kind, name, "x")
	return &v1alpha1.AuditChange{
		TypeMeta: metav1.TypeMeta{APIVersion: r.APIVersion, Kind: "AuditChange"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: r.Name + "." + string(t), CreationTimestamp: metav1.NewTime(at),
			Labels: map[string]string{v1alpha1.LabelTime: at.UTC().Format(v1alpha1.TimeLabelLayout)},
		},
		Change: v1alpha1.Change{
			Type: t, Reason: v1alpha1.ReasonObjectChanged, Time: metav1.NewTime(at), FirstTime: metav1.NewTime(at), Count: 2,
			Constraint: r.Constraint, Resource: r.Resource, Result: r.Result, EnforcementAction: "deny", Message: "label owner\nis missing",
		},
	}
}

func clusterChange(kind, name string, t v1alpha1.ChangeType, at time.Time) *v1alpha1.ClusterAuditChange {
	c := changeOf("", kind, name, t, at)
	c.Kind = "ClusterAuditChange"
	return &v1alpha1.ClusterAuditChange{TypeMeta: c.TypeMeta, ObjectMeta: c.ObjectMeta, Change: c.Change}
}

var friday = time.Date(2026, 12, 4, 0, 0, 0, 0, time.UTC)

// TestChangesByTime selects changes by type and by time, as kubectl does, and warns of
// what the log does not have.
func TestChangesByTime(t *testing.T) {
	s := start(t)
	s.putObjects(
		changeOf("a", "Pod", "old", v1alpha1.ChangeOpened, friday.Add(-time.Second)),
		changeOf("a", "Pod", "new", v1alpha1.ChangeOpened, friday.Add(time.Second)),
		changeOf("b", "Pod", "gone", v1alpha1.ChangeResolved, friday.Add(time.Hour)),
	)
	list := func(options metav1.ListOptions) []string {
		t.Helper()
		list, err := s.client.PolicyV1alpha1().AuditChanges("").List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names
	}
	const since = v1alpha1.LabelTime + ">20261204000000"
	for _, test := range []struct {
		options metav1.ListOptions
		want    []string
	}{
		{metav1.ListOptions{}, []string{"pod.new.opened", "pod.old.opened", "pod.gone.resolved"}},
		{metav1.ListOptions{LabelSelector: since}, []string{"pod.new.opened", "pod.gone.resolved"}},
		{metav1.ListOptions{LabelSelector: since, FieldSelector: "type=opened"}, []string{"pod.new.opened"}},
		{metav1.ListOptions{LabelSelector: since + "," + v1alpha1.LabelTime + "<20261204000002"}, []string{"pod.new.opened"}},
		{metav1.ListOptions{FieldSelector: "type=resolved,reason!=objectDeleted"}, []string{"pod.gone.resolved"}},
		{metav1.ListOptions{FieldSelector: "reason=policyDeleted"}, nil},
	} {
		if diff := cmp.Diff(test.want, list(test.options)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.options, diff)
		}
	}
	var table metav1.Table
	s.into(s.do(http.MethodGet, root+"/namespaces/a/auditchanges/pod.new.opened", "application/json;as=Table;v=v1;g=meta.k8s.io"), &table)
	var header []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			header = append(header, column.Name)
		}
	}
	if diff := cmp.Diff([]string{"Name", "Type", "Reason", "Action", "Constraint", "Resource", "Message", "Age"}, header); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	want := []any{"pod.new.opened", "opened", "objectChanged", "fail", "deny", "NeedLabel/owner", "Pod/new", 2.0, "label owner is missing"}
	if diff := cmp.Diff(want, table.Rows[0].Cells[:len(want)]); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	notice := "changes are known since yesterday only"
	if got := s.do(http.MethodGet, root+"/auditchanges", ""); got.header.Get("Warning") != "" {
		t.Errorf("a warning without reason: %s", got.header)
	}
	s.notice.Store(&notice)
	if got := s.do(http.MethodGet, root+"/auditchanges", ""); !strings.Contains(got.header.Get("Warning"), notice) {
		t.Errorf("no warning: %v", got.header)
	}
	if got := s.do(http.MethodGet, root+"/auditresults", ""); got.header.Get("Warning") != "" {
		t.Errorf("a warning about another resource: %s", got.header)
	}
}

// TestScopedChanges shows changes to those who may see the finding: in its namespace, and
// cluster-scoped ones to those who may see such objects everywhere.
func TestScopedChanges(t *testing.T) {
	tn := startShop(t)
	tn.set("everywhere", right{"", "pods"})
	// Namespaces without findings, and one that is gone.
	tn.putObjects(
		changeOf("a", "Pod", "p9", v1alpha1.ChangeOpened, friday), changeOf("a", "Secret", "s9", v1alpha1.ChangeResolved, friday),
		changeOf("b", "Secret", "s9", v1alpha1.ChangeResolved, friday), changeOf("d", "Pod", "p9", v1alpha1.ChangeResolved, friday),
		clusterChange("Pod", "of-a-gone-namespace", v1alpha1.ChangeResolved, friday), clusterChange("Node", "n9", v1alpha1.ChangeResolved, friday),
	)
	for user, want := range map[string][2][]string{
		"alice":      {{"a/pod.p9.opened", "b/secret.s9.resolved"}, nil},
		"bob":        {{"a/secret.s9.resolved"}, {"node.n9.resolved"}},
		"everywhere": {{"a/pod.p9.opened", "d/pod.p9.resolved"}, {"pod.of-a-gone-namespace.resolved"}},
		"nobody":     {},
		"auditor":    {{"a/pod.p9.opened", "a/secret.s9.resolved", "b/secret.s9.resolved", "d/pod.p9.resolved"}, {"node.n9.resolved", "pod.of-a-gone-namespace.resolved"}},
	} {
		_, client := tn.as(user)
		var got [2][]string
		list, err := client.PolicyV1alpha1().AuditChanges("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			got[0] = append(got[0], list.Items[i].Namespace+"/"+list.Items[i].Name)
		}
		cluster, err := client.PolicyV1alpha1().ClusterAuditChanges().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range cluster.Items {
			got[1] = append(got[1], cluster.Items[i].Name)
		}
		slices.Sort(got[0])
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("changes that %s sees (-want +got):\n%s", user, diff)
		}
	}
	// A watch shows the same, for longer than answers are used.
	_, client := tn.as("alice")
	w, err := client.PolicyV1alpha1().AuditChanges("").Watch(ctx, metav1.ListOptions{FieldSelector: "type=resolved"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if diff := cmp.Diff([]string{"ADDED secret.s9.resolved"}, take(t, w, 1)); diff != "" {
		t.Errorf("the state (-want +got):\n%s", diff)
	}
	time.Sleep(2 * answersTTL)
	tn.putObjects(changeOf("a", "Secret", "s10", v1alpha1.ChangeResolved, friday), changeOf("d", "Pod", "p10", v1alpha1.ChangeResolved, friday),
		changeOf("a", "Pod", "p10", v1alpha1.ChangeResolved, friday))
	if diff := cmp.Diff([]string{"ADDED pod.p10.resolved"}, take(t, w, 1)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
