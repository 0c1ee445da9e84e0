package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
	"policy.example.io/policy-apiserver/pkg/policy/vap"
)

// admissionPolicy is a ValidatingAdmissionPolicy and what became of it.
type admissionPolicy struct {
	obj    *unstructured.Unstructured
	policy *vap.Policy
	digest string
	err    error
}

// addAdmission compiles ValidatingAdmissionPolicies and their bindings into the set.
// A binding is a constraint: its kind is the name of the policy.
func (s *Set) addAdmission(in *Inputs, previous *Set, known map[string]*Constraint) {
	s.admission = map[string]*vap.Policy{}
	policies := map[string]*admissionPolicy{}
	for _, obj := range in.AdmissionPolicies {
		if madeByGatekeeper(obj) {
			continue
		}
		p := compileAdmissionPolicy(obj, previous)
		policies[obj.GetName()] = p
		if p.err != nil {
			s.rejections = append(s.rejections, Rejection{
				ID:         ConstraintID{Engine: EngineValidatingAdmissionPolicy, Kind: obj.GetName()},
				UID:        obj.GetUID(),
				Generation: obj.GetGeneration(),
				Message:    fmt.Sprintf("ValidatingAdmissionPolicy %s: %v", obj.GetName(), p.err),
			})
			continue
		}
		s.admission[p.digest] = p.policy
	}
	params := newParamStore(in)
	for _, obj := range in.AdmissionBindings {
		if !madeByGatekeeper(obj) {
			s.addBinding(obj, policies, params, known)
		}
	}
}

// madeByGatekeeper tells whether Gatekeeper has made an object of a template or a
// constraint, which are evaluated themselves.
func madeByGatekeeper(obj *unstructured.Unstructured) bool {
	return slices.ContainsFunc(obj.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		return strings.HasPrefix(ref.APIVersion, templateAPI) || strings.HasPrefix(ref.APIVersion, constraintGroup+"/")
	})
}

func compileAdmissionPolicy(obj *unstructured.Unstructured, previous *Set) (p *admissionPolicy) {
	p = &admissionPolicy{obj: obj}
	defer func() {
		if r := recover(); r != nil {
			p.policy, p.err = nil, fmt.Errorf("compiling it panicked: %v", r)
		}
	}()
	data, err := json.Marshal(obj.Object["spec"])
	if err != nil {
		p.err = fmt.Errorf("spec: %w", err)
		return p
	}
	p.digest = digest([]byte(obj.GetAPIVersion()+"\x00"+obj.GetName()+"\x00"), data)
	if previous != nil && previous.admission[p.digest] != nil {
		p.policy = previous.admission[p.digest]
		return p
	}
	p.policy, p.err = vap.CompilePolicy(obj)
	return p
}

func (s *Set) addBinding(obj *unstructured.Unstructured, policies map[string]*admissionPolicy, params *paramStore, known map[string]*Constraint) {
	policyName, _, _ := unstructured.NestedString(obj.Object, "spec", "policyName")
	id := ConstraintID{Engine: EngineValidatingAdmissionPolicy, Kind: policyName, Name: obj.GetName()}
	actions := bindingActions(obj)
	c, err := newBinding(id, obj, policies[policyName], params)
	if err != nil {
		s.rejections = append(s.rejections, Rejection{
			ID:                id,
			UID:               obj.GetUID(),
			Generation:        obj.GetGeneration(),
			EnforcementAction: strongest(actions),
			Message:           err.Error(),
		})
		return
	}
	if gvk, ok := c.rule.(*bindingRule).binding.ParamKind(); ok && !slices.Contains(s.paramKinds, gvk) {
		s.paramKinds = append(s.paramKinds, gvk)
	}
	if old := known[c.Digest]; old != nil {
		c = old
	}
	s.constraints = append(s.constraints, c)
}

func newBinding(id ConstraintID, obj *unstructured.Unstructured, p *admissionPolicy, params *paramStore) (*Constraint, error) {
	switch {
	case p == nil:
		return nil, fmt.Errorf("ValidatingAdmissionPolicyBinding %s: there is no ValidatingAdmissionPolicy %q; create it, or delete the binding", id.Name, id.Kind)
	case p.err != nil:
		return nil, fmt.Errorf("ValidatingAdmissionPolicy %s: %w", id.Kind, p.err)
	}
	b, err := vap.NewBinding(p.policy, obj)
	if err != nil {
		return nil, fmt.Errorf("ValidatingAdmissionPolicyBinding %s: %w", id.Name, err)
	}
	c := &Constraint{
		ID:                id,
		UID:               obj.GetUID(),
		Generation:        obj.GetGeneration(),
		EnforcementAction: strongest(b.Actions()),
		NeedsNamespace:    b.NeedsNamespace(),
		rule:              &bindingRule{binding: b, params: params},
	}
	if actions := b.Actions(); len(actions) > 1 {
		c.EnforcementActions = actions
	}
	paramsDigest := ""
	if gvk, ok := b.ParamKind(); ok {
		paramsDigest = params.digests[gvk]
	}
	identity, err := json.Marshal([]any{engineVersion, p.digest, p.obj.GetUID(), p.obj.GetGeneration(), id, c.UID, c.Generation, obj.Object["spec"], paramsDigest})
	if err != nil {
		return nil, fmt.Errorf("digest of the binding: %w", err)
	}
	c.Digest = digest(identity)
	return c, nil
}

// bindingActions are those of a binding that may be wrong.
func bindingActions(obj *unstructured.Unstructured) []string {
	actions, _, _ := unstructured.NestedStringSlice(obj.Object, "spec", "validationActions")
	for i := range actions {
		actions[i] = strings.ToLower(actions[i])
	}
	return actions
}

// strongest returns the action of several that does the most.
func strongest(actions []string) string {
	for _, action := range []string{actionDeny, actionWarn, actionAudit} {
		if slices.Contains(actions, action) {
			return action
		}
	}
	return ""
}

// bindingRule is what a ValidatingAdmissionPolicyBinding asks.
type bindingRule struct {
	binding *vap.Binding
	params  *paramStore
}

func (r *bindingRule) selectsKind(k Kind) bool {
	return r.binding.SelectsKind(k.GroupVersion().WithResource(k.Resource), k.Namespaced)
}

func (r *bindingRule) names(k Kind) bool {
	gvr := k.GroupVersion().WithResource(k.Resource)
	return r.binding.SelectsKind(gvr, k.Namespaced) && r.binding.NamesResource(gvr)
}

func (r *bindingRule) reads(k Kind, object, namespace *paths.Tree) {
	ofObject, ofNamespace := r.binding.ReadsLabels(k.GroupVersion().WithResource(k.Resource))
	if ofObject {
		readLabels(object)
	}
	if ofNamespace {
		readLabels(namespace)
	}
	program := r.binding.Policy.Program()
	object.Add(program.Object)
	namespace.Add(program.NamespaceObject)
}

func (r *bindingRule) selectsGroup(group string) bool { return r.binding.SelectsGroup(group) }

var bindingOutcomes = map[vap.Outcome]Outcome{
	vap.NotMatched: NotMatched,
	vap.Pass:       Pass,
	vap.Fail:       Fail,
	vap.Error:      Error,
	vap.Deferred:   Deferred,
}

func (r *bindingRule) judge(ctx context.Context, o *Object) judgement {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	v := r.binding.Judge(ctx, vap.Subject{
		Object:     o.obj,
		Namespace:  o.namespace,
		Resource:   o.kind.GroupVersion().WithResource(o.kind.Resource),
		Namespaced: o.kind.Namespaced,
		Operation:  o.operation(),
		Request:    o.celRequest(),
	}, r.params)
	outcome, ok := bindingOutcomes[v.Outcome]
	if !ok {
		return failed(errors.New("the verdict is none that is known"))
	}
	return judgement{outcome: outcome, message: v.Message, reason: v.Reason}.with(v.Violations)
}

// paramStore has the objects that bindings take their params from. It is immutable.
type paramStore struct {
	namespaced map[schema.GroupVersionKind]bool
	objects    map[schema.GroupVersionKind][]*unstructured.Unstructured // by namespace and name
	digests    map[schema.GroupVersionKind]string
}

var _ vap.Params = (*paramStore)(nil)

func newParamStore(in *Inputs) *paramStore {
	s := &paramStore{namespaced: map[schema.GroupVersionKind]bool{}, objects: map[schema.GroupVersionKind][]*unstructured.Unstructured{}, digests: map[schema.GroupVersionKind]string{}}
	for _, kind := range in.ParamKinds {
		s.namespaced[kind.GroupVersionKind] = kind.Namespaced
		s.digests[kind.GroupVersionKind] = "empty"
	}
	for _, obj := range in.Params {
		s.objects[obj.GroupVersionKind()] = append(s.objects[obj.GroupVersionKind()], obj)
	}
	for gvk, objects := range s.objects {
		slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
			return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
		})
		parts := make([][]byte, 0, len(objects))
		for _, obj := range objects {
			parts = append(parts, paramDigest(obj))
		}
		s.digests[gvk] = digest(parts...)
	}
	return s
}

// paramDigest leaves out what changes without a change of what is asked for.
func paramDigest(obj *unstructured.Unstructured) []byte {
	content := maps.Clone(obj.Object)
	delete(content, "status")
	if metadata, ok := content["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		delete(metadata, "resourceVersion")
		delete(metadata, "managedFields")
		content["metadata"] = metadata
	}
	data, err := json.Marshal(content)
	if err != nil {
		data = []byte(obj.GetResourceVersion()) // what came as JSON can be written as JSON
	}
	return append(data, 0)
}

// Namespaced implements vap.Params.
func (s *paramStore) Namespaced(gvk schema.GroupVersionKind) (namespaced, known bool) {
	namespaced, known = s.namespaced[gvk]
	return namespaced, known
}

// Get implements vap.Params.
func (s *paramStore) Get(gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, bool) {
	for _, obj := range s.objects[gvk] {
		if obj.GetNamespace() == namespace && obj.GetName() == name {
			return obj, true
		}
	}
	return nil, false
}

// List implements vap.Params.
func (s *paramStore) List(gvk schema.GroupVersionKind, namespace string, selector labels.Selector) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, obj := range s.objects[gvk] {
		if obj.GetNamespace() == namespace && selector.Matches(labels.Set(obj.GetLabels())) {
			out = append(out, obj)
		}
	}
	return out
}
