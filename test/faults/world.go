package faults

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// template says which label is missing, and in which version of an object.
const template = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: faultlabel}
spec:
  crd:
    spec:
      names: {kind: FaultLabel}
      validation: {openAPIV3Schema: {type: object, properties: {label: {type: string}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package faults
      violation[{"msg": msg}] {
        not input.review.object.metadata.labels[input.parameters.label]
        msg := sprintf("%v is missing in %v", [input.parameters.label, input.review.object.metadata.labels.version])
      }
`

var constraintResource = schema.GroupVersionResource{Group: "constraints.gatekeeper.sh", Version: "v1beta1", Resource: "faultlabel"}

// finding is what is found in an object.
type finding struct{ constraint, namespace, kind, name, message string }

func (f finding) String() string {
	return fmt.Sprintf("%s: %s %s/%s: %s", f.constraint, f.kind, f.namespace, f.name, f.message)
}

// labels that objects may have and constraints ask for.
var labels = []string{"a", "b", "c"}

type key struct{ namespace, kind, name string }

// world are the objects and constraints of a seed, and what is true of them.
type world struct {
	core    kubernetes.Interface
	dynamic dynamic.Interface
	random  *rand.Rand
	prefix  string
	version int

	objects     map[key]map[string]string // labels
	constraints map[string]string         // by name, the label that is asked for

	mu sync.Mutex
	// versions of objects that there were at any time, and labels that constraints asked
	// for; entered before they are written.
	versions map[key][]map[string]string
	asked    map[string][]string
}

func newWorld(core kubernetes.Interface, dyn dynamic.Interface, seed int64) *world {
	return &world{
		core: core, dynamic: dyn, random: rand.New(rand.NewSource(seed)), prefix: fmt.Sprintf("faults-%d-", seed),
		objects: map[key]map[string]string{}, constraints: map[string]string{},
		versions: map[key][]map[string]string{}, asked: map[string][]string{},
	}
}

func (w *world) allNamespaces() []string { return []string{w.prefix + "x", w.prefix + "y"} }

// expected is what is true now.
func (w *world) expected() []finding {
	var out []finding
	for k, has := range w.objects {
		for name, label := range w.constraints {
			if has[label] == "" {
				out = append(out, finding{name, k.namespace, k.kind, k.name, message(label, has)})
			}
		}
	}
	slices.SortFunc(out, compare)
	return out
}

func compare(a, b finding) int { return strings.Compare(a.String(), b.String()) }

// couldBeTrue tells whether a finding follows from some version of its object and some
// version of its constraint. These come by different watches, in no certain order.
func (w *world) couldBeTrue(f finding) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, label := range w.asked[f.constraint] {
		for _, has := range w.versions[key{f.namespace, f.kind, f.name}] {
			if has[label] == "" && f.message == message(label, has) {
				return true
			}
		}
	}
	return false
}

func message(label string, has map[string]string) string {
	return fmt.Sprintf("%s is missing in %s", label, has["version"])
}

// begin makes the namespaces, some objects and constraints.
func (w *world) begin(ctx context.Context) error {
	for _, namespace := range w.allNamespaces() {
		_, err := w.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	for range 30 {
		if err := w.changeObject(ctx); err != nil {
			return err
		}
	}
	for range 2 {
		if err := w.changeConstraint(ctx); err != nil {
			return err
		}
	}
	return nil
}

// step changes something.
func (w *world) step(ctx context.Context) error {
	switch n := w.random.Intn(20); {
	case n < 3:
		return w.changeConstraint(ctx)
	default:
		return w.changeObject(ctx)
	}
}

// changeObject makes, changes or deletes an object.
func (w *world) changeObject(ctx context.Context) error {
	k := key{w.allNamespaces()[w.random.Intn(2)], []string{"ConfigMap", "ServiceAccount"}[w.random.Intn(2)], fmt.Sprintf("o%d", w.random.Intn(20))}
	_, exists := w.objects[k]
	if exists && w.random.Intn(3) == 0 {
		delete(w.objects, k)
		return w.remove(ctx, k)
	}
	w.version++
	has := map[string]string{"version": fmt.Sprint(w.version)}
	for _, label := range labels {
		if w.random.Intn(2) == 0 {
			has[label] = "yes"
		}
	}
	w.objects[k] = has
	w.mu.Lock()
	w.versions[k] = append(w.versions[k], has)
	w.mu.Unlock()
	return w.put(ctx, k, has, exists)
}

func (w *world) put(ctx context.Context, k key, has map[string]string, exists bool) error {
	meta := metav1.ObjectMeta{Name: k.name, Namespace: k.namespace, Labels: has}
	var err error
	switch k.kind {
	case "ConfigMap":
		client, obj := w.core.CoreV1().ConfigMaps(k.namespace), &corev1.ConfigMap{ObjectMeta: meta}
		if exists {
			_, err = client.Update(ctx, obj, metav1.UpdateOptions{})
		} else {
			_, err = client.Create(ctx, obj, metav1.CreateOptions{})
		}
	default:
		client, obj := w.core.CoreV1().ServiceAccounts(k.namespace), &corev1.ServiceAccount{ObjectMeta: meta}
		if exists {
			_, err = client.Update(ctx, obj, metav1.UpdateOptions{})
		} else {
			_, err = client.Create(ctx, obj, metav1.CreateOptions{})
		}
	}
	return err
}

func (w *world) remove(ctx context.Context, k key) error {
	if k.kind == "ConfigMap" {
		return w.core.CoreV1().ConfigMaps(k.namespace).Delete(ctx, k.name, metav1.DeleteOptions{})
	}
	return w.core.CoreV1().ServiceAccounts(k.namespace).Delete(ctx, k.name, metav1.DeleteOptions{})
}

// changeConstraint makes, changes or deletes a constraint.
func (w *world) changeConstraint(ctx context.Context) error {
	name := fmt.Sprintf("%sc%d", w.prefix, w.random.Intn(3))
	client := w.dynamic.Resource(constraintResource)
	_, exists := w.constraints[name]
	if exists && w.random.Intn(4) == 0 {
		delete(w.constraints, name)
		return client.Delete(ctx, name, metav1.DeleteOptions{})
	}
	label := labels[w.random.Intn(len(labels))]
	w.constraints[name] = label
	w.mu.Lock()
	w.asked[name] = append(w.asked[name], label)
	w.mu.Unlock()
	spec := map[string]any{
		"match": map[string]any{
			"namespaces": []any{w.allNamespaces()[0], w.allNamespaces()[1]},
			"kinds":      []any{map[string]any{"apiGroups": []any{""}, "kinds": []any{"ConfigMap", "ServiceAccount"}}},
			// The namespace controller makes these.
			"labelSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "version", "operator": "Exists"}}},
		},
		"parameters": map[string]any{"label": label},
	}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "constraints.gatekeeper.sh/v1beta1", "kind": "FaultLabel", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if !exists {
		_, err := client.Create(ctx, obj, metav1.CreateOptions{})
		return err
	}
	old, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	obj.SetResourceVersion(old.GetResourceVersion())
	_, err = client.Update(ctx, obj, metav1.UpdateOptions{})
	return err
}

// end deletes what is left.
func (w *world) end(ctx context.Context) error {
	for name := range w.constraints {
		if err := w.dynamic.Resource(constraintResource).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, namespace := range w.allNamespaces() {
		if err := w.core.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
