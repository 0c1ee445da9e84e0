package rows_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// drawObject returns an object of any of the types and an empty one of its type.
func drawObject(t *rapid.T) (object, empty metav1.Object) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a", `"`, `\`, "<&>", "\u2028", `"resourceVersion":"`, `"metadata":{`}))
	object, empty = rapid.SampledFrom([]func() (metav1.Object, metav1.Object){
		func() (metav1.Object, metav1.Object) {
			return &v1alpha1.AuditResult{Finding: drawFinding(t, text)}, &v1alpha1.AuditResult{}
		},
		func() (metav1.Object, metav1.Object) {
			return &v1alpha1.ClusterAuditResult{Finding: drawFinding(t, text)}, &v1alpha1.ClusterAuditResult{}
		},
		func() (metav1.Object, metav1.Object) {
			return &v1alpha1.AuditChange{Change: v1alpha1.Change{Message: text.Draw(t, "message")}}, &v1alpha1.AuditChange{}
		},
		func() (metav1.Object, metav1.Object) {
			return &v1alpha1.ClusterAuditChange{Change: v1alpha1.Change{PreviousResult: text.Draw(t, "result")}}, &v1alpha1.ClusterAuditChange{}
		},
		func() (metav1.Object, metav1.Object) {
			return &v1alpha1.AuditRun{Phase: v1alpha1.RunPhase(text.Draw(t, "phase"))}, &v1alpha1.AuditRun{}
		},
		func() (metav1.Object, metav1.Object) {
			return &v1alpha1.ConstraintSummary{Message: text.Draw(t, "message")}, &v1alpha1.ConstraintSummary{}
		},
	}).Draw(t, "type")()
	object.SetName(text.Draw(t, "name"))
	object.SetGenerateName(text.Draw(t, "generateName"))
	object.SetNamespace(text.Draw(t, "namespace"))
	object.SetSelfLink(text.Draw(t, "selfLink"))
	object.SetUID(types.UID(text.Draw(t, "uid")))
	object.SetResourceVersion(text.Draw(t, "resourceVersion"))
	object.SetGeneration(rapid.Int64Range(0, 2).Draw(t, "generation"))
	if rapid.Bool().Draw(t, "created") {
		object.SetCreationTimestamp(metav1.Unix(1_700_000_000, 0))
	}
	object.SetLabels(rapid.MapOfN(text, text, 0, 2).Draw(t, "labels"))
	object.SetAnnotations(rapid.MapOfN(text, text, 0, 2).Draw(t, "annotations"))
	if rapid.Bool().Draw(t, "typed") {
		kind, ok := object.(runtime.Object)
		if !ok {
			t.Fatalf("%T is no object", object)
		}
		kind.GetObjectKind().SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Any"))
	}
	return object, empty
}

func drawFinding(t *rapid.T, text *rapid.Generator[string]) v1alpha1.Finding {
	f := v1alpha1.Finding{
		Constraint:    v1alpha1.ConstraintReference{Kind: text.Draw(t, "constraint")},
		Resource:      v1alpha1.ResourceReference{Name: text.Draw(t, "resource"), ResourceVersion: "7"},
		FirstObserved: metav1.NewTime(time.Unix(1_700_000_000, 0)),
	}
	if rapid.Bool().Draw(t, "violated") {
		details, err := json.Marshal(map[string]string{text.Draw(t, "key"): text.Draw(t, "value")})
		if err != nil {
			t.Fatal(err)
		}
		f.Violations = []v1alpha1.Violation{{Message: text.Draw(t, "message"), Details: &runtime.RawExtension{Raw: details}}}
	}
	return f
}

// TestAppendJSON compares the spliced text with the encoding of the decoded object.
func TestAppendJSON(t *testing.T) {
	spliced := 0
	rapid.Check(t, func(t *rapid.T) {
		object, empty := drawObject(t)
		row, err := rows.Encode(object)
		if err != nil {
			t.Fatal(err)
		}
		stored := &index.Row{Key: row.Key, Attrs: row.Attrs, Revision: rapid.Uint64().Draw(t, "revision"), Value: row.Value}
		if err := rows.Decode(stored, empty); err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(empty)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := rows.AppendJSON([]byte("before "), stored, stored.Revision)
		if !ok {
			if !bytes.Equal(got, []byte("before ")) {
				t.Fatalf("not ok, and %s is appended", got)
			}
			return
		}
		spliced++
		if diff := cmp.Diff("before "+string(want), string(got)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		typed := bytes.HasPrefix(row.Value, []byte(`{"kind":`))
		if rows.IsVersion(stored, "policy.example.io/v1alpha1") != typed || rows.IsVersion(stored, "policy.example.io/v1") {
			t.Fatalf("the apiVersion of %s is not told", row.Value)
		}
	})
	if spliced == 0 {
		t.Error("nothing was spliced")
	}
}

// TestAppendJSONOfResults does not fall back for objects as the audit writes them.
func TestAppendJSONOfResults(t *testing.T) {
	result := &v1alpha1.AuditResult{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy.example.io/v1alpha1", Kind: "AuditResult"},
		ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "ns", UID: "u", Labels: map[string]string{"a": "b"}},
	}
	row, err := rows.Encode(result)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := rows.AppendJSON(nil, &index.Row{Value: row.Value}, 42)
	want := `{"kind":"AuditResult","apiVersion":"policy.example.io/v1alpha1","metadata":{"name":"n","namespace":"ns","uid":"u","resourceVersion":"42","labels":{"a":"b"}},`
	if !ok || !bytes.HasPrefix(got, []byte(want)) {
		t.Errorf("%v: %s\nwant %s...", ok, got, want)
	}
}

// FuzzAppendJSON makes no invalid JSON of valid JSON, whatever the value is.
func FuzzAppendJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"metadata":{}}`, `{"metadata":{"name":"a"}}`, `{"kind":"K","apiVersion":"v1","metadata":{"name":"a","uid":"u","labels":{}},"x":1}`,
		`{"metadata":{"name":"a","resourceVersion":"1"}}`, `{"metadata":{"name":"a\"b"}}`, `{"metadata":{"name":"a",`, `[]`, ``, `{"metadata":{"uid":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		row := &index.Row{Value: value}
		got, ok := rows.AppendJSON(nil, row, 5)
		rows.IsVersion(row, "v1")
		if !json.Valid(value) || !ok {
			return
		}
		var object struct{ Metadata map[string]any }
		if err := json.Unmarshal(got, &object); err != nil || !bytes.Contains(got, []byte(`"resourceVersion":"5"`)) {
			t.Errorf("%s became %s: %v", value, got, err)
		}
	})
}
