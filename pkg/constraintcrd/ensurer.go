package constraintcrd

import (
	"context"
	"fmt"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/pkg/policy"
)

const (
	// ManagedByLabel marks the definitions that this package made.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of ManagedByLabel.
	ManagedBy = "policy-apiserver"
)

// Ensurer makes the definitions of constraints. It is safe for concurrent use.
type Ensurer struct {
	definitions client.CustomResourceDefinitionInterface
	// define makes the definition that belongs to a template.
	define func(template *unstructured.Unstructured) (*apiextensionsv1.CustomResourceDefinition, error)
}

// NewEnsurer returns an Ensurer for the cluster that cfg leads to.
func NewEnsurer(cfg *rest.Config) (*Ensurer, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = ManagedBy
	clients, err := clientset.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of CustomResourceDefinitions: %w", err)
	}
	return newEnsurer(clients), nil
}

func newEnsurer(clients clientset.Interface) *Ensurer {
	return &Ensurer{
		definitions: clients.ApiextensionsV1().CustomResourceDefinitions(),
		define:      policy.ConstraintCRD,
	}
}

// Ensure makes the definition of the template's constraints if there is none, and
// brings one that an Ensurer made up to date. It is idempotent. It does not wait
// until the definition is established. An error is worth a retry unless the template
// is wrong.
func (e *Ensurer) Ensure(ctx context.Context, template *unstructured.Unstructured) error {
	want, err := e.define(template)
	if err != nil {
		return fmt.Errorf("definition of constraints: %w", err)
	}
	want = want.DeepCopy()
	own(want, template)
	// The server fills in the same defaults, so what it returns can be compared.
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(want)

	err = retry.RetryOnConflict(retry.DefaultRetry, func() error { return e.apply(ctx, want) })
	if err != nil {
		return fmt.Errorf("definition of the constraints of template %s: %w", template.GetName(), err)
	}
	return nil
}

// own marks a definition as ours and as owned by its template.
func own(crd *apiextensionsv1.CustomResourceDefinition, template *unstructured.Unstructured) {
	if crd.Labels == nil {
		crd.Labels = map[string]string{}
	}
	crd.Labels[ManagedByLabel] = ManagedBy
	crd.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: template.GetAPIVersion(),
		Kind:       template.GetKind(),
		Name:       template.GetName(),
		UID:        template.GetUID(),
	}}
}

// apply creates the definition or updates it.
func (e *Ensurer) apply(ctx context.Context, want *apiextensionsv1.CustomResourceDefinition) error {
	logger := klog.FromContext(ctx)
	have, err := e.definitions.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = e.definitions.Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			logger.Info("Created the definition of constraints", "crd", want.Name)
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		// Somebody else was faster: another replica, or a Gatekeeper.
		have, err = e.definitions.Get(ctx, want.Name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	if have.Labels[ManagedByLabel] != ManagedBy {
		logger.V(4).Info("The definition of constraints belongs to somebody else", "crd", want.Name)
		return nil
	}
	if have.DeletionTimestamp != nil {
		return fmt.Errorf("%s is being deleted, together with its constraints", want.Name)
	}
	next := merge(have, want)
	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}
	if _, err := e.definitions.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return err
	}
	logger.Info("Updated the definition of constraints", "crd", want.Name)
	return nil
}

// merge returns have with everything that want says. A template that was made anew
// has another uid; without its owner reference the definition would be collected.
func merge(have, want *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	next := have.DeepCopy()
	next.Spec = *want.Spec.DeepCopy()
	next.OwnerReferences = want.OwnerReferences
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
	if len(want.Annotations) > 0 && next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, want.Annotations)
	return next
}
