package reviewcmd

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

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

// newOffline reads the policies of --policies. kinds are those of what is judged, which
// win over those of the directory, as its objects do in data.inventory.
func newOffline(ctx context.Context, opts *options, kinds []source.Kind, judged []directory.Manifest) (*offline, error) {
	src, err := directory.New(opts.policies, directory.Options{})
	if err != nil {
		return nil, fmt.Errorf("--policies: %w", err)
	}
	o := &offline{kinds: map[schema.GroupKind]source.Kind{}, namespaces: map[string]*unstructured.Unstructured{}}
	inventory, err := src.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	o.wrong = texts(inventory.Problems)
	in := policy.Inputs{AllowNet: opts.allowNet}
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
		case gk == schema.GroupKind{Group: "expansion.gatekeeper.sh", Kind: "ExpansionTemplate"}:
			in.ExpansionTemplates = objects
		case gk == schema.GroupKind{Group: "config.gatekeeper.sh", Kind: "Config"}:
			in.Configs = objects
		case gk == schema.GroupKind{Group: "syncset.gatekeeper.sh", Kind: "SyncSet"}:
			in.SyncSets = objects
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
	if err := addParams(src, o.set, o.kinds, &in); err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		o.kinds[kind.GroupKind()] = kind
	}
	if in.Inventory, err = o.dataInventory(src, judged); err != nil {
		return nil, err
	}
	o.set = policy.Compile(ctx, in, o.set)
	for _, rejection := range o.set.Rejections() {
		o.wrong = append(o.wrong, rejection.Message)
	}
	if len(o.set.At(policy.PointAll)) == 0 {
		o.wrong = append(o.wrong, opts.policies+" has no constraints and no bindings to judge by")
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

// dataInventory has what policies read in data.inventory: the objects of the directory,
// and instead of those of the same names the ones that are judged.
func (o *offline) dataInventory(src *directory.Source, judged []directory.Manifest) (*policy.Inventory, error) {
	kinds := make([]policy.Kind, 0, len(o.kinds))
	for _, kind := range o.kinds {
		kinds = append(kinds, policy.Kind(kind))
	}
	var all []policy.InventoryObjects
	for _, view := range o.set.InventoryViews(kinds, nil) {
		gk := view.Kind.GroupKind()
		objects, err := src.Objects(gk)
		if err != nil {
			return nil, err
		}
		byName := map[types.NamespacedName]*unstructured.Unstructured{}
		for _, obj := range objects {
			byName[nameOf(obj)] = obj
		}
		for i := range judged {
			if obj := judged[i].Object; obj.GroupVersionKind().GroupKind() == gk {
				byName[nameOf(obj)] = obj
			}
		}
		known := policy.InventoryObjects{View: view}
		for _, obj := range byName {
			item, err := view.Item(obj)
			if err != nil {
				return nil, err
			}
			if item != nil {
				known.Items = append(known.Items, item)
			}
		}
		all = append(all, known)
	}
	return policy.NewInventory(all, nil), nil
}

func nameOf(obj *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
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

// Kinds implements review.Policies.
func (o *offline) Kinds() (preferred, others []policy.Kind, failedGroups map[string]error) {
	for _, kind := range o.kinds {
		preferred = append(preferred, policy.Kind(kind))
	}
	return preferred, nil, nil
}

// Namespaces implements review.Policies.
func (o *offline) Namespaces() []string { return slices.Sorted(maps.Keys(o.namespaces)) }
