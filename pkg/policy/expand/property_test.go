package expand

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

type document = map[string]any

var (
	kindNames = rapid.SampledFrom([]string{"A", "B", "C", "D", "E"})
	sources   = rapid.SampledFrom([]string{"spec", "spec.t", "t", "metadata", "spec.t.t"})
)

// drawTemplates draws templates of few kinds, so that they follow each other.
func drawTemplates(t *rapid.T) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for i := range rapid.IntRange(1, 6).Draw(t, "templates") {
		kinds := []any{}
		for _, kind := range rapid.SliceOfN(kindNames, 1, 2).Draw(t, "from") {
			kinds = append(kinds, kind)
		}
		out = append(out, &unstructured.Unstructured{Object: document{
			"apiVersion": "expansion.gatekeeper.sh/v1beta1", "kind": "ExpansionTemplate",
			"metadata": document{"name": fmt.Sprintf("t%d", i)},
			"spec": document{
				"applyTo":        []any{document{"groups": []any{"x"}, "versions": []any{"v1"}, "kinds": kinds}},
				"templateSource": sources.Draw(t, "source"),
				"generatedGVK":   document{"group": "x", "version": "v1", "kind": kindNames.Draw(t, "to")},
			},
		}})
	}
	return out
}

// drawContent draws the content of an object, in which sources are found or not.
func drawContent(t *rapid.T, depth int) document {
	d := document{}
	for _, key := range []string{"spec", "t", "metadata"} {
		switch n := rapid.IntRange(0, 9).Draw(t, key); {
		case n < 7 && depth > 0:
			d[key] = drawContent(t, depth-1)
		case n == 7:
			d[key] = "text"
		case n == 8:
			d[key] = nil
		}
	}
	return d
}

// oracle makes the resultants of a document by the description of Gatekeeper's audit,
// without any of the package's code: as JSON with the name of the template in front.
func oracle(templates []*unstructured.Unstructured, parent document) []string {
	var out []string
	for _, template := range templates {
		spec := template.Object["spec"].(document)
		entry := spec["applyTo"].([]any)[0].(document)
		if !slices.Contains(entry["kinds"].([]any), parent["kind"]) {
			continue
		}
		var value any = parent
		for field := range strings.SplitSeq(spec["templateSource"].(string), ".") {
			d, _ := value.(document)
			value = d[field]
		}
		data, err := json.Marshal(value)
		if err != nil {
			panic(err)
		}
		var made document
		if json.Unmarshal(data, &made) != nil || made == nil {
			continue
		}
		if made["metadata"] == nil {
			made["metadata"] = document{}
		}
		metadata, ok := made["metadata"].(document)
		if !ok {
			continue
		}
		of := parent["metadata"].(document)
		name, _ := of["name"].(string)
		made["apiVersion"], made["kind"] = "x/v1", spec["generatedGVK"].(document)["kind"]
		metadata["name"] = strings.ToLower(name + "-" + made["kind"].(string))
		metadata["namespace"] = of["namespace"]
		owner := document{"apiVersion": "x/v1", "kind": parent["kind"], "name": name, "uid": ""}
		owners, _ := metadata["ownerReferences"].([]any)
		metadata["ownerReferences"] = append(owners, owner)
		if data, err = json.Marshal(made); err != nil {
			panic(err)
		}
		out = append(out, template.GetName()+": "+string(data))
		out = append(out, oracle(templates, made)...)
	}
	return out
}

// TestExpandAsTheOracle compares the resultants of random objects with the oracle's,
// and checks what holds for every system.
func TestExpandAsTheOracle(t *testing.T) {
	resultants, failures, circles := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		objs := drawTemplates(t)
		var compiled []*Template
		for _, obj := range objs {
			template, err := Compile(obj)
			if err != nil {
				if !strings.Contains(err.Error(), "which is spec.generatedGVK") {
					t.Fatal(err)
				}
				continue
			}
			compiled = append(compiled, template)
		}
		s, refused := NewSystem(compiled)
		circles += len(refused)
		shuffled, refusedToo := NewSystem(rapid.Permutation(compiled).Draw(t, "order"))
		if s.Digest() != shuffled.Digest() || len(refused) != len(refusedToo) {
			t.Fatalf("the order of templates matters: %v and %v", refused, refusedToo)
		}
		if len(refused)+len(s.Templates()) != len(compiled) {
			t.Fatalf("%d templates, %d in the system, %d refused", len(compiled), len(s.Templates()), len(refused))
		}
		kept := slices.DeleteFunc(objs, func(obj *unstructured.Unstructured) bool {
			return !slices.ContainsFunc(s.Templates(), func(t *Template) bool { return t.Name == obj.GetName() })
		})

		obj := &unstructured.Unstructured{Object: drawContent(t, 5)}
		obj.Object["metadata"] = document{"t": drawContent(t, 2)}
		obj.SetGroupVersionKind(schema.GroupVersionKind{Group: "x", Version: "v1", Kind: kindNames.Draw(t, "kind")})
		obj.SetName("Obj")
		obj.SetNamespace("shop")
		before := obj.DeepCopy()
		want := oracle(kept, before.DeepCopy().Object)
		e := s.Expand(obj)
		if diff := cmp.Diff(before, obj); diff != "" {
			t.Fatalf("the object was modified (-before +after):\n%s", diff)
		}
		var got []string
		if e == nil {
			e = &Expansion{}
		}
		makes := map[schema.GroupVersionKind]bool{}
		for _, template := range s.Templates() {
			if template.AppliesTo(obj.GroupVersionKind().GroupKind()) {
				for _, gvk := range s.Makes(template) {
					makes[gvk] = true
				}
			}
		}
		for _, r := range e.Resultants {
			data, err := json.Marshal(r.Object.Object)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Template.Name+": "+string(data))
			if !makes[r.Object.GroupVersionKind()] {
				t.Fatalf("Makes does not have %s", r.Object.GroupVersionKind())
			}
		}
		for _, f := range e.Failures {
			for _, gvk := range f.Kinds {
				if !makes[gvk] {
					t.Fatalf("Makes does not have %s", gvk)
				}
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("resultants (-oracle +Expand):\n%s", diff)
		}
		resultants += len(e.Resultants)
		failures += len(e.Failures)
	})
	if resultants == 0 || failures == 0 || circles == 0 {
		t.Errorf("%d resultants, %d failures and %d templates in circles: some never occur", resultants, failures, circles)
	}
}

// FuzzExpand compiles anything, and expands anything by it.
func FuzzExpand(f *testing.F) {
	for _, manifests := range [][]string{{deployments, jobs, cronJobs}, {manifest("a", "x/v1 A", "metadata", "x/v1 B", ""), manifest("b", "x/v1 B", "metadata", "x/v1 A", "")}} {
		var list []any
		for _, m := range manifests {
			list = append(list, parse(f, m).Object)
		}
		templates, err := json.Marshal(list)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(templates, []byte(`{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"c","namespace":"n"},"spec":{"jobTemplate":{"spec":{"template":{"metadata":{"ownerReferences":[{"uid":7},3]}}}}}}`))
	}
	f.Add([]byte(`[{"metadata":{"name":"a"},"spec":{"applyTo":[{"groups":[""],"versions":[""],"kinds":[""]}],"templateSource":"metadata","generatedGVK":{"group":"a/b","kind":"/"}}}]`), []byte(`{"apiVersion":"/","kind":"","metadata":{"metadata":null}}`))
	f.Fuzz(func(t *testing.T, manifests, object []byte) {
		var list []document
		var content document
		if json.Unmarshal(manifests, &list) != nil || json.Unmarshal(object, &content) != nil || content == nil {
			return
		}
		var templates []*Template
		for _, d := range list {
			obj := &unstructured.Unstructured{Object: d}
			if d == nil {
				obj.Object = document{}
			}
			if template, err := Compile(obj); err == nil {
				templates = append(templates, template)
			}
		}
		s, refused := NewSystem(templates)
		if len(s.Templates())+len(refused) != len(templates) {
			t.Fatalf("%d templates, %d in the system, %d refused", len(templates), len(s.Templates()), len(refused))
		}
		before, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		e := s.Expand(&unstructured.Unstructured{Object: content})
		if after, err := json.Marshal(content); err != nil || string(after) != string(before) {
			t.Fatalf("the object was modified, %v: %s, before %s", err, after, before)
		}
		if e != nil && len(e.Resultants)+len(e.Failures) > len(templates)*(maxResultants+1) {
			t.Fatalf("%d resultants and %d failures of %d templates", len(e.Resultants), len(e.Failures), len(templates))
		}
	})
}
