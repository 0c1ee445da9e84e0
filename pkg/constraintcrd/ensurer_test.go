package constraintcrd

import (
	"context"
	"errors"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

const crdName = "k8srequiredlabels.constraints.gatekeeper.sh"

// template returns a template whose constraints have one parameter.
func template(t *testing.T, uid, parameter string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(`
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata:
  name: k8srequiredlabels
  uid: `+uid+`
spec:
  crd:
    spec:
      names: {kind: K8sRequiredLabels}
      validation:
        openAPIV3Schema:
          type: object
          properties:
            `+parameter+`: {type: string, default: x}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package k8srequiredlabels
      violation[{"msg": "no"}] { true }
`), &obj.Object)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func get(t *testing.T, clients *fake.Clientset) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := clients.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), crdName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return crd
}

// writes returns the verbs of the requests so far that write, and forgets them.
func writes(clients *fake.Clientset) string {
	var verbs []string
	for _, action := range clients.Actions() {
		if verb := action.GetVerb(); verb != "get" {
			verbs = append(verbs, verb)
		}
	}
	clients.ClearActions()
	return strings.Join(verbs, " ")
}

func ensure(t *testing.T, e *Ensurer, template *unstructured.Unstructured) {
	t.Helper()
	if err := e.Ensure(t.Context(), template); err != nil {
		t.Fatal(err)
	}
}

func TestEnsure(t *testing.T) {
	clients := fake.NewClientset()
	e := newEnsurer(clients)

	ensure(t, e, template(t, "u1", "owner"))
	crd := get(t, clients)
	if crd.Labels[ManagedByLabel] != ManagedBy || crd.Labels["gatekeeper.sh/constraint"] != "yes" {
		t.Errorf("labels: %v", crd.Labels)
	}
	want := metav1.OwnerReference{APIVersion: "templates.gatekeeper.sh/v1", Kind: "ConstraintTemplate", Name: "k8srequiredlabels", UID: "u1"}
	if len(crd.OwnerReferences) != 1 || crd.OwnerReferences[0] != want {
		t.Errorf("owners: %v", crd.OwnerReferences)
	}
	if got := writes(clients); got != "create" {
		t.Errorf("writes: %s", got)
	}

	ensure(t, e, template(t, "u1", "owner"))
	if got := writes(clients); got != "" {
		t.Errorf("writes for an unchanged template: %s", got)
	}

	// What others add stays.
	crd.Annotations = map[string]string{"note": "kept"}
	crd.Status.StoredVersions = []string{"v1beta1"}
	if _, err := clients.ApiextensionsV1().CustomResourceDefinitions().Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	clients.ClearActions()
	ensure(t, e, template(t, "u1", "team"))
	if got := writes(clients); got != "update" {
		t.Errorf("writes for a changed template: %s", got)
	}
	crd = get(t, clients)
	parameters := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["parameters"].Properties
	if _, ok := parameters["team"]; !ok || len(parameters) != 1 {
		t.Errorf("parameters: %v", parameters)
	}
	if crd.Annotations["note"] != "kept" || len(crd.Status.StoredVersions) != 1 {
		t.Errorf("annotations: %v, status: %v", crd.Annotations, crd.Status)
	}

	// A template that was made anew owns the definition; otherwise it would go with
	// the old one.
	ensure(t, e, template(t, "u2", "team"))
	if owners := get(t, clients).OwnerReferences; len(owners) != 1 || owners[0].UID != types.UID("u2") {
		t.Errorf("owners: %v", owners)
	}
}

func TestEnsureLeavesOthersAlone(t *testing.T) {
	for _, labels := range []map[string]string{nil, {ManagedByLabel: "helm"}, {"gatekeeper.sh/constraint": "yes"}} {
		foreign := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crdName, Labels: labels}}
		clients := fake.NewClientset(foreign)
		ensure(t, newEnsurer(clients), template(t, "u1", "owner"))
		if got := writes(clients); got != "" {
			t.Errorf("writes to a definition with labels %v: %s", labels, got)
		}
	}
}

// Two replicas, or a Gatekeeper, create the same definition at the same time.
func TestEnsureLosesRace(t *testing.T) {
	for _, labels := range []map[string]string{nil, {ManagedByLabel: ManagedBy}} {
		clients := fake.NewClientset()
		clients.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			other := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crdName, Labels: labels}}
			if err := clients.Tracker().Add(other); err != nil {
				t.Error(err)
			}
			return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "customresourcedefinitions"}, crdName)
		})
		ensure(t, newEnsurer(clients), template(t, "u1", "owner"))
		if got, want := writes(clients) == "create update", labels != nil; got != want {
			t.Errorf("definition with labels %v was updated: %v", labels, got)
		}
	}
}

func TestEnsureRetriesConflicts(t *testing.T) {
	clients := fake.NewClientset()
	e := newEnsurer(clients)
	ensure(t, e, template(t, "u1", "owner"))
	conflicts := 0
	clients.PrependReactor("update", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 2 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "customresourcedefinitions"}, crdName, errors.New("changed"))
	})
	ensure(t, e, template(t, "u1", "team"))
	if conflicts != 3 {
		t.Errorf("%d updates", conflicts)
	}
}

func TestEnsureErrors(t *testing.T) {
	now := metav1.Now()
	deleting := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: crdName, Labels: map[string]string{ManagedByLabel: ManagedBy}, DeletionTimestamp: &now, Finalizers: []string{"x"},
	}}
	err := newEnsurer(fake.NewClientset(deleting)).Ensure(t.Context(), template(t, "u1", "owner"))
	if err == nil || !strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("error: %v", err)
	}

	clients := fake.NewClientset()
	clients.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, crdName, errors.New("no right"))
	})
	err = newEnsurer(clients).Ensure(t.Context(), template(t, "u1", "owner"))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "template k8srequiredlabels") {
		t.Errorf("error: %v", err)
	}

	wrong := template(t, "u1", "owner")
	wrong.SetName("other")
	if err := newEnsurer(clients).Ensure(context.Background(), wrong); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("error: %v", err)
	}
}
