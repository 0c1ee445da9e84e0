package review

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// maxParams is how many params of a kind are read for a review at most.
const maxParams = 1000

// placeParam checks a candidate that is no policy: it has to be of a paramKind, and is
// put into its namespace.
func (c *candidates) placeParam(g *given) *field.Error {
	gvk := g.obj.GroupVersionKind()
	kind, ok := c.paramKind(gvk)
	if !ok || !slices.Contains(c.kinds, gvk) {
		return field.Invalid(g.path.Child("kind"), g.gk.Kind, fmt.Sprintf("%s %s is no kind of policies, and no paramKind of a ValidatingAdmissionPolicy that is given or that a binding that is given names; candidates are ConstraintTemplates, constraints, ValidatingAdmissionPolicies, their bindings and params, and ExpansionTemplates", gvk.GroupVersion(), gvk.Kind))
	}
	switch {
	case !kind.Namespaced:
		g.obj.SetNamespace("")
	case g.obj.GetNamespace() == "" && c.Namespace != "":
		g.obj.SetNamespace(c.Namespace)
	case g.obj.GetNamespace() == "":
		g.obj.SetNamespace(metav1.NamespaceDefault)
	}
	return nil
}

// paramKinds returns those of the policies that are given, wherever in the list, and of
// the installed ones that are bound there.
func (c *candidates) paramKinds() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	bound := map[string]bool{}
	for i := range c.Spec.CandidatePolicies {
		obj, problem := decodeObject(c.path, &c.Spec.CandidatePolicies[i])
		if problem != nil {
			continue
		}
		switch obj.GroupVersionKind().GroupKind() {
		case policyKind:
			if gvk, ok := paramKindOf(obj); ok {
				out = append(out, gvk)
			}
		case bindingKind:
			bound[policyNameOf(obj)] = true
		}
	}
	for _, p := range c.policies.Set().Inputs().AdmissionPolicies {
		if gvk, ok := paramKindOf(p); ok && bound[p.GetName()] {
			out = append(out, gvk)
		}
	}
	return out
}

func paramKindOf(admissionPolicy *unstructured.Unstructured) (schema.GroupVersionKind, bool) {
	apiVersion, _, _ := unstructured.NestedString(admissionPolicy.Object, "spec", "paramKind", "apiVersion")
	kind, _, _ := unstructured.NestedString(admissionPolicy.Object, "spec", "paramKind", "kind")
	return schema.FromAPIVersionAndKind(apiVersion, kind), kind != ""
}

// paramKind returns a kind of params as it is served. Every cluster has ConfigMaps and
// Secrets, even if a directory has none.
func (c *candidates) paramKind(gvk schema.GroupVersionKind) (policy.Kind, bool) {
	kind, ok, err := c.policies.Kind(gvk.GroupKind())
	if err == nil && ok {
		return kind, kind.GroupVersionKind == gvk
	}
	if c.GuessKind == nil || err != nil {
		return policy.Kind{}, false
	}
	return c.GuessKind(gvk, false)
}

// addParams adds the params that are given, and those of the cluster that bindings refer
// to: who asks must have the right to read these, because what a policy says may show
// them.
func (c *candidates) addParams(ctx context.Context, installed *policy.Inputs) {
	policies := map[string]*unstructured.Unstructured{}
	for _, p := range c.in.AdmissionPolicies {
		policies[p.GetName()] = p
	}
	live := map[string]*unstructured.Unstructured{} // by kind, namespace and name
	known := map[schema.GroupVersionKind]bool{}
	learn := func(kind policy.Kind) {
		if !known[kind.GroupVersionKind] {
			known[kind.GroupVersionKind] = true
			c.in.ParamKinds = append(c.in.ParamKinds, kind)
		}
	}
	for _, binding := range c.in.AdmissionBindings {
		gvk, ok := schema.GroupVersionKind{}, false
		if p := policies[policyNameOf(binding)]; p != nil {
			gvk, ok = paramKindOf(p)
		}
		ref, found, _ := unstructured.NestedMap(binding.Object, "spec", "paramRef")
		if !ok || !found {
			continue
		}
		kind, ok := c.paramKind(gvk)
		if !ok {
			continue // of which the verdicts say that there is none
		}
		learn(kind)
		r := c.paramReading(kind, ref)
		if r.Name != "" && c.gives(gvk, r) {
			continue
		}
		if err := c.allowed(ctx, r); err != nil {
			c.refuseParams(binding, err)
			continue
		}
		objects, err := c.liveParams(ctx, r, installed)
		if err != nil {
			c.refuseParams(binding, err)
			continue
		}
		for _, obj := range objects {
			live[gvk.String()+"\x00"+obj.GetNamespace()+"\x00"+obj.GetName()] = obj
		}
	}
	for i := range c.given {
		g := &c.given[i]
		if gvk := g.obj.GroupVersionKind(); !IsPolicy(g.gk) {
			if kind, ok := c.paramKind(gvk); ok {
				learn(kind)
			}
			live[gvk.String()+"\x00"+g.obj.GetNamespace()+"\x00"+g.obj.GetName()] = g.obj
		}
	}
	for _, obj := range live {
		c.in.Params = append(c.in.Params, obj)
	}
}

// paramReading is what a paramRef takes to be read. Params of a namespaced kind without a
// namespace are those in the namespace of each object.
func (c *candidates) paramReading(kind policy.Kind, ref map[string]any) Reading {
	name, _, _ := unstructured.NestedString(ref, "name")
	namespace, _, _ := unstructured.NestedString(ref, "namespace")
	switch {
	case !kind.Namespaced:
		namespace = ""
	case namespace == "":
		namespace = c.Namespace
	}
	if name == "" || kind.Namespaced && namespace == "" {
		return Reading{Verb: "list", Kind: kind, Namespace: namespace}
	}
	return Reading{Verb: "get", Kind: kind, Namespace: namespace, Name: name}
}

func (c *candidates) gives(gvk schema.GroupVersionKind, r Reading) bool {
	return slices.ContainsFunc(c.given, func(g given) bool {
		return g.obj.GroupVersionKind() == gvk && g.obj.GetName() == r.Name && g.obj.GetNamespace() == r.Namespace
	})
}

func (c *candidates) refuseParams(binding *unstructured.Unstructured, err error) {
	path := c.path
	for i := range c.given {
		if g := &c.given[i]; g.gk == bindingKind && g.obj.GetName() == binding.GetName() {
			path = g.path.Child("spec", "paramRef")
		}
	}
	c.errs = append(c.errs, field.Forbidden(path, fmt.Sprintf("the params of the ValidatingAdmissionPolicyBinding %s cannot be read: %v; give them among the candidatePolicies", binding.GetName(), err)))
}

// liveParams reads params, unless the audit has loaded their kind.
func (c *candidates) liveParams(ctx context.Context, r Reading, installed *policy.Inputs) ([]*unstructured.Unstructured, error) {
	if slices.ContainsFunc(installed.ParamKinds, func(k policy.Kind) bool { return k.GroupVersionKind == r.Kind.GroupVersionKind }) {
		var out []*unstructured.Unstructured
		for _, obj := range installed.Params {
			if obj.GroupVersionKind() == r.Kind.GroupVersionKind && (r.Namespace == "" || r.Namespace == obj.GetNamespace()) {
				out = append(out, obj)
			}
		}
		return out, nil
	}
	switch {
	case c.Reader == nil:
		return nil, nil
	case r.Verb == "get":
		obj, err := c.Reader.Get(ctx, r.Kind, r.Namespace, r.Name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return []*unstructured.Unstructured{obj}, err
	}
	var out []*unstructured.Unstructured
	err := c.Reader.List(ctx, r.Kind, r.Namespace, "", func(page []*unstructured.Unstructured) error {
		if out = append(out, page...); len(out) > maxParams {
			return fmt.Errorf("there are more than %d", maxParams)
		}
		return nil
	})
	return out, err
}
