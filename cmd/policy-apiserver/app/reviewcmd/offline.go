package reviewcmd

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/review"
	"policy.example.io/policy-apiserver/pkg/source"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

// offline answers reviews by the policies of a directory.
type offline struct {
	set        *policy.Set
	kinds      map[schema.GroupKind]source.Kind
	namespaces map[string]*unstructured.Unstructured
	wrong      []string
}

var (
	_ reviewer        = (*offline)(nil)
	_ review.Policies = (*offline)(nil)
)

// newOffline reads the policies of a directory. kinds are those of what is judged, which
// win over those of the directory.
func newOffline(ctx context.Context, path string, kinds []source.Kind) (*offline, error) {
	src, err := directory.New(path, directory.Options{})
	if err != nil {
		return nil, fmt.Errorf("--policies: %w", err)
	}
	o := &offline{kinds: map[schema.GroupKind]source.Kind{}, namespaces: map[string]*unstructured.Unstructured{}}
	inventory, err := src.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	o.wrong = texts(inventory.Problems)
	var in policy.Inputs
	for _, kind := range inventory.Kinds {
		o.kinds[kind.GroupKind()] = kind
		objects, err := src.Objects(kind.GroupKind())
		if err != nil {
			return nil, err
		}
		switch gk := kind.GroupKind(); {
		case gk.Group == "constraints.gatekeeper.sh":
			in.Constraints = append(in.Constraints, objects...)
		case gk == schema.GroupKind{Group: "templates.gatekeeper.sh", Kind: "ConstraintTemplate"}:
			in.Templates = objects
		case gk == schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}:
			in.AdmissionPolicies = objects
		case gk == schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}:
			in.AdmissionBindings = objects
		case gk == schema.GroupKind{Kind: "Namespace"}:
			for _, namespace := range objects {
				o.namespaces[namespace.GetName()] = namespace
			}
		}
	}
	o.set = policy.Compile(ctx, in, nil)
	if len(o.set.ParamKinds()) > 0 {
		if err := addParams(src, o.set, o.kinds, &in); err != nil {
			return nil, err
		}
		o.set = policy.Compile(ctx, in, o.set)
	}
	for _, kind := range kinds {
		o.kinds[kind.GroupKind()] = kind
	}
	for _, rejection := range o.set.Rejections() {
		o.wrong = append(o.wrong, rejection.Message)
	}
	if len(o.set.At(policy.PointAll)) == 0 {
		o.wrong = append(o.wrong, path+" has no constraints and no bindings to judge by")
	}
	return o, ctx.Err()
}

// addParams adds the objects that policies take their params from. Of a kind that the
// directory has no object of there are none.
func addParams(src *directory.Source, set *policy.Set, kinds map[schema.GroupKind]source.Kind, in *policy.Inputs) error {
	for _, gvk := range set.ParamKinds() {
		kind, ok := kinds[gvk.GroupKind()]
		if !ok {
			kind, _ = directory.GuessKind(gvk, false)
		}
		kind.GroupVersionKind = gvk
		objects, err := src.Objects(gvk.GroupKind())
		if err != nil {
			return err
		}
		in.ParamKinds = append(in.ParamKinds, policy.Kind(kind))
		in.Params = append(in.Params, objects...)
	}
	return nil
}

func (o *offline) review(ctx context.Context, spec *v1alpha1.ReviewSpec) (*v1alpha1.ReviewStatus, error) {
	request := review.Request{Spec: spec}
	if u := spec.UserInfo; u != nil {
		request.User = policy.User{Name: u.Username, Groups: u.Groups}
	}
	return review.Evaluate(ctx, o, request)
}

func (o *offline) problems() []string { return o.wrong }

// Set implements review.Policies.
func (o *offline) Set() *policy.Set { return o.set }

// Missing implements review.Policies.
func (o *offline) Missing() []string { return nil }

// Namespace implements review.Policies.
func (o *offline) Namespace(name string) *unstructured.Unstructured { return o.namespaces[name] }

// Kind implements review.Policies.
func (o *offline) Kind(gk schema.GroupKind) (policy.Kind, bool, error) {
	if kind, ok := o.kinds[gk]; ok {
		return policy.Kind(kind), true, nil
	}
	return policy.Kind{}, false, nil
}
