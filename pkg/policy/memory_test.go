package policy

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// BenchmarkInventory loads 10,000 Ingresses for a policy that reads their hosts, makes
// the document of them, as is done after each change, and judges one of them.
func BenchmarkInventory(b *testing.B) {
	const ingresses = 10000
	in := inputsOf(b, testTemplate(uniqueHost), testConstraint("c", "match: {}"))
	set := Compile(context.Background(), in, nil)
	view := set.InventoryViews(testKinds, nil)[0]
	objects := make([]*unstructured.Unstructured, ingresses)
	for i := range objects {
		objects[i] = ingressOfSize(fmt.Sprintf("team-%d", i/20), fmt.Sprintf("shop-%d", i), fmt.Sprintf("shop-%d.example.com", i))
	}
	before := heap()
	items := make([]*InventoryItem, ingresses)
	for i := range objects {
		var err error
		if items[i], err = view.Item(objects[i]); err != nil {
			b.Fatal(err)
		}
	}
	kept := heap()
	b.Run("document", func(b *testing.B) {
		var inventory *Inventory
		for b.Loop() {
			inventory = NewInventory([]InventoryObjects{{View: view, Items: items}}, nil)
			inventory.document()
		}
		b.ReportMetric(float64(kept-before)/ingresses, "bytes-kept/object")
		b.ReportMetric(float64(heap()-kept)/ingresses, "bytes-document/object")
		runtime.KeepAlive(inventory)
	})
	in.Inventory = NewInventory([]InventoryObjects{{View: view, Items: items}}, nil)
	set = Compile(context.Background(), in, set)
	b.Run("judge", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			obj := objects[i%ingresses].DeepCopy()
			obj.SetName("new") // not one that has been judged
			if v := Review(context.Background(), NewObject(ingressKind, obj, nil), set.Constraints())[0]; v.Outcome != Fail {
				b.Fatal(v)
			}
		}
	})
	runtime.KeepAlive(objects)
}

// ingressOfSize is an Ingress of about 2 KB.
func ingressOfSize(namespace, name, host string) *unstructured.Unstructured {
	annotations := map[string]any{}
	for i := range 8 {
		annotations[fmt.Sprintf("ingress.example.com/option-%d", i)] = strings.Repeat("x", 60)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": name + "-uid", "annotations": annotations, "labels": map[string]any{"app": name}},
		"spec": map[string]any{
			"tls": []any{map[string]any{"hosts": []any{host}, "secretName": name + "-tls"}},
			"rules": []any{map[string]any{"host": host, "http": map[string]any{"paths": []any{map[string]any{
				"path": "/", "pathType": "Prefix", "backend": map[string]any{"service": map[string]any{"name": name, "port": map[string]any{"number": int64(80)}}},
			}}}}},
		},
		"status": map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "192.0.2.1"}}}},
	}}
}

// BenchmarkPolicies compiles templates of 25 lines of Rego, and constraints, and tells
// what they take.
func BenchmarkPolicies(b *testing.B) {
	const n = 200
	template := parse(b, testTemplate(uniqueHost))
	var templates, constraints []*unstructured.Unstructured
	for i := range n {
		t := template.DeepCopy()
		t.SetName(fmt.Sprintf("test%d", i))
		if err := unstructured.SetNestedField(t.Object, fmt.Sprintf("Test%d", i), "spec", "crd", "spec", "names", "kind"); err != nil {
			b.Fatal(err)
		}
		templates = append(templates, t)
		c := parse(b, testConstraint(fmt.Sprintf("c%d", i), "match: {kinds: [{kinds: [Ingress]}]}\nparameters: {label: owner}"))
		c.SetKind("Test0")
		constraints = append(constraints, c)
	}
	before := heap()
	var set *Set
	for b.Loop() {
		set = Compile(context.Background(), Inputs{Templates: templates}, nil)
	}
	compiled := heap()
	with := Compile(context.Background(), Inputs{Templates: templates, Constraints: constraints}, set)
	b.ReportMetric(float64(compiled-before)/n, "bytes/template")
	b.ReportMetric(float64(heap()-compiled)/n, "bytes/constraint")
	if len(with.Constraints()) != n {
		b.Fatal(with.Rejections())
	}
	for _, alive := range []any{set, with, templates, constraints} {
		runtime.KeepAlive(alive)
	}
}
