package policy

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/expand"
	"policy.example.io/policy-apiserver/pkg/policy/vap"
)

// Inputs of Compile, in any order. They must not be modified any more.
type Inputs struct {
	// Templates are ConstraintTemplates.
	Templates []*unstructured.Unstructured
	// Constraints are objects of the group constraints.gatekeeper.sh.
	Constraints []*unstructured.Unstructured
	// ExpansionTemplates are objects of the group expansion.gatekeeper.sh.
	ExpansionTemplates []*unstructured.Unstructured
	// AdmissionPolicies and AdmissionBindings are ValidatingAdmissionPolicies and their
	// bindings, of version v1.
	AdmissionPolicies, AdmissionBindings []*unstructured.Unstructured
	// ParamKinds are those of the kinds that ParamKinds of an earlier Set named that
	// exist, and Params their objects.
	ParamKinds []Kind
	Params     []*unstructured.Unstructured
	// AllowNet are the hosts that programs in Rego may reach, * for all. Templates whose
	// programs reach the network are rejected without any.
	AllowNet []string
	// SyncSets and Configs are Gatekeeper's.
	SyncSets, Configs []*unstructured.Unstructured
	// Inventory has the objects of the kinds that InventoryViews of an earlier Set
	// named. Constraints that read what is not in it are deferred.
	Inventory *Inventory
}

// Set is an immutable snapshot of policies.
type Set struct {
	constraints []*Constraint
	elsewhere   []*Constraint // enforced, but not by audits
	rejections  []Rejection
	templates   map[string]*template // by digest
	digest      string
	memo        *memo
	expansion   *expand.System
	admission   map[string]*vap.Policy // by digest
	paramKinds  []schema.GroupVersionKind
	// synced are the kinds that SyncSets and the Config name, sorted.
	synced     []schema.GroupVersionKind
	exclusions *exclusions
	inputs     Inputs
}

// ParamKinds returns the kinds whose objects the bindings of ValidatingAdmissionPolicies
// take their params from. The slice must not be modified.
func (s *Set) ParamKinds() []schema.GroupVersionKind { return s.paramKinds }

// Digest identifies the policies and their order of evaluation.
func (s *Set) Digest() string { return s.digest }

// Constraints returns the constraints that are audited, sorted by ID. The slice
// must not be modified.
func (s *Set) Constraints() []*Constraint { return s.constraints }

// Rejections returns what cannot be evaluated and why, sorted by ID. The slice
// must not be modified.
func (s *Set) Rejections() []Rejection { return s.rejections }

// ForKind returns the constraints that can match objects of a kind, or resultants of
// such objects, sorted by ID.
func (s *Set) ForKind(k Kind) []*Constraint {
	var out []*Constraint
	for _, c := range s.constraints {
		if c.SelectsKind(k) {
			out = append(out, c)
		}
	}
	return out
}

// compiled is a template object and what became of it.
type compiled struct {
	obj      *unstructured.Unstructured
	kind     string
	template *template
	err      error
}

// Compile makes a Set. Programs of templates and constraints that previous, which may
// be nil, has as well are taken from there, with what is remembered of them.
func Compile(ctx context.Context, in Inputs, previous *Set) *Set {
	templates := compileTemplates(ctx, in.Templates, in.AllowNet, previous)
	set := &Set{templates: map[string]*template{}, memo: newMemo(memoBytes), inputs: in}
	known := map[string]*Constraint{}
	if previous != nil {
		set.memo = previous.memo
		for _, c := range slices.Concat(previous.constraints, previous.elsewhere) {
			known[c.Digest] = c
		}
	}
	byKind := map[string]*compiled{}
	for i := range templates {
		t := &templates[i]
		// Of several templates for a kind it is the one that bears its name.
		if t.kind != "" && (byKind[t.kind] == nil || t.obj.GetName() == strings.ToLower(t.kind)) {
			byKind[t.kind] = t
		}
		if t.err != nil {
			set.rejections = append(set.rejections, Rejection{
				ID:         ConstraintID{Engine: EngineGatekeeper, Kind: kindOrName(t)},
				UID:        t.obj.GetUID(),
				Generation: t.obj.GetGeneration(),
				Message:    fmt.Sprintf("template %s: %v", t.obj.GetName(), t.err),
			})
			continue
		}
		set.templates[t.template.digest] = t.template
	}
	set.addConfig(&in)
	// Constraints that the sets share keep theirs then.
	if previous != nil && reflect.DeepEqual(previous.exclusions, set.exclusions) {
		set.exclusions = previous.exclusions
	}
	set.addExpansions(in.ExpansionTemplates, previous)
	for _, obj := range in.Constraints {
		set.add(ctx, obj, byKind[obj.GetKind()], in.Inventory, known)
	}
	set.addAdmission(&in, previous, known)
	sort.Slice(set.constraints, func(i, j int) bool { return less(set.constraints[i].ID, set.constraints[j].ID) })
	sort.Slice(set.elsewhere, func(i, j int) bool { return less(set.elsewhere[i].ID, set.elsewhere[j].ID) })
	sort.Slice(set.rejections, func(i, j int) bool { return less(set.rejections[i].ID, set.rejections[j].ID) })
	parts := make([][]byte, 0, len(set.constraints)+len(set.rejections))
	for _, c := range slices.Concat(set.constraints, set.elsewhere) {
		parts = append(parts, []byte(c.Digest))
	}
	for _, r := range set.rejections {
		parts = append(parts, fmt.Appendf(nil, "\x00%v %s %d %s", r.ID, r.UID, r.Generation, r.Message))
	}
	set.digest = digest(parts...)
	return set
}

func kindOrName(t *compiled) string {
	if t.kind != "" {
		return t.kind
	}
	return t.obj.GetName()
}

func less(a, b ConstraintID) bool { return compareIDs(a, b) < 0 }

// add compiles a constraint into the set. known are constraints by their digests.
func (s *Set) add(ctx context.Context, obj *unstructured.Unstructured, t *compiled, inventory *Inventory, known map[string]*Constraint) {
	id := ConstraintID{Engine: EngineGatekeeper, Kind: obj.GetKind(), Name: obj.GetName()}
	reject := func(message string) {
		s.rejections = append(s.rejections, Rejection{
			ID:                id,
			UID:               obj.GetUID(),
			Generation:        obj.GetGeneration(),
			EnforcementAction: enforcementAction(obj.Object),
			Message:           message,
		})
	}
	switch {
	case t == nil:
		reject(fmt.Sprintf("constraint %s/%s has no template; create the ConstraintTemplate %s, or delete the constraint", id.Kind, id.Name, strings.ToLower(id.Kind)))
		return
	case t.err != nil:
		reject(fmt.Sprintf("template %s: %v", t.obj.GetName(), t.err))
		return
	}
	c, audited, err := newConstraint(ctx, id, obj, t.template, s, inventory)
	if err != nil {
		reject(fmt.Sprintf("constraint %s/%s: %v", id.Kind, id.Name, err))
		return
	}
	c.addExpansion(s.expansion)
	if old := known[c.Digest]; old != nil {
		c = old.under(s, c) // with what the memo has of it
	}
	if audited {
		s.constraints = append(s.constraints, c)
	} else {
		s.elsewhere = append(s.elsewhere, c)
	}
}

// compileTemplates compiles templates on all cores, in the order of their names.
func compileTemplates(ctx context.Context, objs []*unstructured.Unstructured, allowNet []string, previous *Set) []compiled {
	out := make([]compiled, len(objs))
	for i, obj := range objs {
		out[i].obj = obj
	}
	sort.Slice(out, func(i, j int) bool { return out[i].obj.GetName() < out[j].obj.GetName() })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range out {
		group.Go(func() error {
			out[i].compile(ctx, allowNet, previous)
			return nil
		})
	}
	// The functions return no errors: what is wrong with a template is its own.
	_ = group.Wait()
	return out
}

func (c *compiled) compile(ctx context.Context, allowNet []string, previous *Set) {
	defer func() {
		if r := recover(); r != nil {
			c.template, c.err = nil, fmt.Errorf("compiling it panicked: %v", r)
		}
	}()
	if c.kind, c.err = ConstraintKind(c.obj); c.err != nil {
		return
	}
	spec, digest, err := readTemplate(c.obj)
	if err != nil {
		c.err = err
		return
	}
	if len(allowNet) > 0 {
		digest = withHosts(digest, allowNet)
	}
	if previous != nil && previous.templates[digest] != nil {
		c.template = previous.templates[digest]
		return
	}
	if c.err = ctx.Err(); c.err == nil {
		c.template, c.err = compileTemplate(c.obj, spec, allowNet, digest)
	}
}
