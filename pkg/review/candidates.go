package review

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// Limits of candidates.
const (
	// MaxCandidates is how many candidate policies a review has at most.
	MaxCandidates = 100
	// MaxCandidateBytes is how large they are together.
	MaxCandidateBytes = 1 << 20
)

// Kinds of policies.
const constraintGroup = "constraints.gatekeeper.sh"

var (
	templateKind  = schema.GroupKind{Group: "templates.gatekeeper.sh", Kind: "ConstraintTemplate"}
	expansionKind = schema.GroupKind{Group: "expansion.gatekeeper.sh", Kind: "ExpansionTemplate"}
	policyKind    = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}
	bindingKind   = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}
)

// IsPolicy tells whether objects of a kind can be candidates wherever they are given;
// others only as the params of one.
func IsPolicy(gk schema.GroupKind) bool {
	switch gk {
	case templateKind, expansionKind, policyKind, bindingKind:
		return true
	}
	return gk.Group == constraintGroup
}

// candidates are the policies of a review that are not installed.
type candidates struct {
	*evaluation
	path  *field.Path
	given []given
	errs  field.ErrorList
	// kinds of params that there can be among the candidates.
	kinds []schema.GroupVersionKind
	// in has what the set is made of: the candidates, and of what is installed that which
	// they need.
	in  policy.Inputs
	set *policy.Set
}

// given is a candidate as it was given.
type given struct {
	path *field.Path
	obj  *unstructured.Unstructured
	gk   schema.GroupKind
}

func (g *given) String() string { return g.gk.Kind + " " + g.obj.GetName() }

// compileCandidates makes the set of the candidates.
func (e *evaluation) compileCandidates(ctx context.Context) (*candidates, field.ErrorList) {
	c := &candidates{evaluation: e, path: field.NewPath("spec", "candidatePolicies")}
	c.kinds = c.paramKinds()
	for i := range e.Spec.CandidatePolicies {
		c.read(c.path.Index(i), &e.Spec.CandidatePolicies[i])
	}
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	installed := e.policies.Set().Inputs()
	c.in = policy.Inputs{SyncSets: installed.SyncSets, Configs: installed.Configs}
	c.in.ExpansionTemplates = c.over(expansionKind, installed.ExpansionTemplates)
	c.addTemplates(&installed)
	c.addAdmission(&installed)
	c.addParams(ctx, &installed)
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	c.compile(ctx, &installed)
	return c, c.errs
}

// read reads a candidate.
func (c *candidates) read(path *field.Path, raw *runtime.RawExtension) {
	obj, problem := decodeObject(path, raw)
	if problem == nil && obj.GetName() == "" {
		problem = field.Required(path.Child("metadata", "name"), "")
	}
	if problem != nil {
		c.errs = append(c.errs, problem)
		return
	}
	g := given{path: path, obj: obj, gk: obj.GroupVersionKind().GroupKind()}
	if IsPolicy(g.gk) {
		obj.SetNamespace("")
	} else if problem := c.placeParam(&g); problem != nil {
		c.errs = append(c.errs, problem)
		return
	}
	for i := range c.given {
		other := &c.given[i]
		if other.gk == g.gk && other.obj.GetName() == obj.GetName() && other.obj.GetNamespace() == obj.GetNamespace() {
			c.errs = append(c.errs, field.Duplicate(path, g.String()))
			return
		}
	}
	c.given = append(c.given, g)
}

// all returns the candidates of a kind.
func (c *candidates) all(gk schema.GroupKind) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for i := range c.given {
		if c.given[i].gk == gk {
			out = append(out, c.given[i].obj)
		}
	}
	return out
}

// over returns the candidates of a kind and the installed objects of other names.
func (c *candidates) over(gk schema.GroupKind, installed []*unstructured.Unstructured) []*unstructured.Unstructured {
	out := c.all(gk)
	for _, obj := range installed {
		if !c.replaces(gk, obj) {
			out = append(out, obj)
		}
	}
	return out
}

// replaces tells whether there is a candidate in place of an installed object.
func (c *candidates) replaces(gk schema.GroupKind, obj *unstructured.Unstructured) bool {
	return slices.ContainsFunc(c.given, func(g given) bool {
		return g.gk == gk && g.obj.GetName() == obj.GetName() && g.obj.GetNamespace() == obj.GetNamespace()
	})
}

// addTemplates adds templates and constraints. A template that is given brings the
// installed constraints of its kind, a constraint that is given its installed template.
func (c *candidates) addTemplates(installed *policy.Inputs) {
	templates := c.over(templateKind, installed.Templates)
	here := map[string]bool{} // kinds of constraints whose template is given
	for _, t := range c.all(templateKind) {
		if kind, err := policy.ConstraintKind(t); err == nil {
			here[kind] = true
		}
	}
	needed := map[string]bool{}
	for i := range c.given {
		g := &c.given[i]
		if g.gk.Group != constraintGroup {
			continue
		}
		c.in.Constraints = append(c.in.Constraints, g.obj)
		needed[g.gk.Kind] = true
		is := func(t *unstructured.Unstructured) bool {
			kind, err := policy.ConstraintKind(t)
			return err == nil && kind == g.gk.Kind
		}
		if !slices.ContainsFunc(templates, is) {
			c.errs = append(c.errs, field.Invalid(g.path.Child("kind"), g.gk.Kind, fmt.Sprintf("there is no ConstraintTemplate %s, neither among the candidatePolicies nor installed; add it, or correct the kind", strings.ToLower(g.gk.Kind))))
		}
	}
	for _, t := range templates {
		kind, err := policy.ConstraintKind(t)
		if c.replaces(templateKind, t) || err == nil && needed[kind] && !here[kind] {
			c.in.Templates = append(c.in.Templates, t)
		}
	}
	for _, obj := range installed.Constraints {
		if here[obj.GetKind()] && !c.replaces(obj.GroupVersionKind().GroupKind(), obj) {
			c.in.Constraints = append(c.in.Constraints, obj)
		}
	}
}

// addAdmission does the same for ValidatingAdmissionPolicies and their bindings.
func (c *candidates) addAdmission(installed *policy.Inputs) {
	policies := c.over(policyKind, installed.AdmissionPolicies)
	needed := map[string]bool{}
	for i := range c.given {
		g := &c.given[i]
		if g.gk != bindingKind {
			continue
		}
		name := policyNameOf(g.obj)
		needed[name] = true
		c.in.AdmissionBindings = append(c.in.AdmissionBindings, g.obj)
		if !slices.ContainsFunc(policies, func(p *unstructured.Unstructured) bool { return p.GetName() == name }) {
			c.errs = append(c.errs, field.Invalid(g.path.Child("spec", "policyName"), name, "there is no such ValidatingAdmissionPolicy, neither among the candidatePolicies nor installed; add it, or correct the name"))
		}
	}
	for _, p := range policies {
		if c.replaces(policyKind, p) || needed[p.GetName()] {
			c.in.AdmissionPolicies = append(c.in.AdmissionPolicies, p)
		}
	}
	for _, obj := range installed.AdmissionBindings {
		if c.givesPolicy(policyNameOf(obj)) && !c.replaces(bindingKind, obj) {
			c.in.AdmissionBindings = append(c.in.AdmissionBindings, obj)
		}
	}
}

func (c *candidates) givesPolicy(name string) bool {
	return slices.ContainsFunc(c.given, func(g given) bool { return g.gk == policyKind && g.obj.GetName() == name })
}

func policyNameOf(binding *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(binding.Object, "spec", "policyName")
	return name
}

// compile compiles the candidates and says what is wrong with them.
func (c *candidates) compile(ctx context.Context, installed *policy.Inputs) {
	c.set = c.policies.Set().CompileCandidates(ctx, c.in)
	preferred, others, _ := c.policies.Kinds()
	if inventory := c.set.CandidateInventory(installed.Inventory, preferred, others, func(kind policy.Kind) error {
		return c.allowed(ctx, Reading{Verb: "list", Kind: kind})
	}); inventory != nil {
		c.in.Inventory = inventory
		c.set = c.set.CompileCandidates(ctx, c.in)
	}
	rejections := c.set.Rejections()
	broken := map[string]bool{} // kinds of constraints and names of policies
	for _, r := range rejections {
		if r.ID.Name == "" {
			broken[string(r.ID.Engine)+r.ID.Kind] = true
		}
	}
	for _, r := range rejections {
		if r.ID.Name != "" && broken[string(r.ID.Engine)+r.ID.Kind] {
			continue // for the same reason
		}
		if path, who := c.culprit(r.ID); path != nil {
			c.errs = append(c.errs, field.Invalid(path, who, r.Message))
		}
	}
}

// culprit returns the candidate that a rejection is due to, nil if it is due to none.
func (c *candidates) culprit(id policy.ConstraintID) (*field.Path, string) {
	// The object itself; what it is for, if that is installed; what it is of, if it is
	// installed itself.
	var itself, user, base *given
	for i := range c.given {
		g := &c.given[i]
		if family(g.gk) != id.Engine {
			continue
		}
		kind, _ := policy.ConstraintKind(g.obj)
		name := g.obj.GetName()
		switch {
		case g.gk == templateKind && (kind == id.Kind || id.Name == "" && name == id.Kind),
			g.gk == policyKind && name == id.Kind:
			if base = g; id.Name == "" {
				itself = g
			}
		case g.gk == expansionKind && id.Kind == expansionKind.Kind:
			if base = g; name == id.Name { // others may make a circle with it
				itself = g
			}
		case g.gk.Group == constraintGroup && g.gk.Kind == id.Kind, g.gk == bindingKind && policyNameOf(g.obj) == id.Kind:
			switch id.Name {
			case name:
				itself = g
			case "":
				user = g
			}
		}
	}
	switch {
	case itself != nil:
		return itself.path, itself.String()
	case user != nil:
		return user.path, user.String()
	case base != nil:
		return base.path, fmt.Sprintf("%s, which makes the installed %s/%s invalid", base, id.Kind, id.Name)
	}
	return nil, ""
}

// family of the policies of a kind.
func family(gk schema.GroupKind) policy.Engine {
	if gk == policyKind || gk == bindingKind {
		return policy.EngineValidatingAdmissionPolicy
	}
	return policy.EngineGatekeeper
}

// supersedes tells whether an installed constraint is not as it would be if the
// candidates were installed.
func (c *candidates) supersedes(id policy.ConstraintID) bool {
	for i := range c.given {
		g := &c.given[i]
		if id.Engine == policy.EngineValidatingAdmissionPolicy {
			if g.gk == policyKind && g.obj.GetName() == id.Kind || g.gk == bindingKind && g.obj.GetName() == id.Name {
				return true
			}
			continue
		}
		if g.gk.Group == constraintGroup && g.gk.Kind == id.Kind && g.obj.GetName() == id.Name {
			return true
		}
		if kind, err := policy.ConstraintKind(g.obj); g.gk == templateKind && err == nil && kind == id.Kind {
			return true
		}
	}
	return false
}

// installed returns the set of what is installed with the ExpansionTemplates that are
// given, which make more of objects.
func (c *candidates) installed(ctx context.Context) *policy.Set {
	set := c.policies.Set()
	if len(c.all(expansionKind)) == 0 {
		return set
	}
	in := set.Inputs()
	in.ExpansionTemplates = c.in.ExpansionTemplates
	return set.Recompile(ctx, in)
}

// candidateConstraints returns the constraints of the candidates and, if they are asked
// for, the installed ones.
func (e *evaluation) candidateConstraints(ctx context.Context) ([]*policy.Constraint, field.ErrorList) {
	c, errs := e.compileCandidates(ctx)
	if len(errs) > 0 {
		return nil, errs
	}
	all := c.set.At(e.point)
	e.candidates = map[*policy.Constraint]bool{}
	for _, constraint := range all {
		e.candidates[constraint] = true
	}
	e.digest = c.set.Digest()
	if e.Spec.WithInstalled {
		installed := c.installed(ctx)
		e.judging = append(e.judging, installed)
		for _, constraint := range installed.At(e.point) {
			if !c.supersedes(constraint.ID) {
				all = append(all, constraint)
			}
		}
		sum := sha256.Sum256([]byte(e.digest + installed.Digest()))
		e.digest = hex.EncodeToString(sum[:16])
	}
	if len(all) == 0 {
		what := "no constraint and no binding among them judges anything"
		if e.point != policy.PointAll {
			what += " at " + e.point
		}
		return nil, field.ErrorList{field.Invalid(c.path, len(c.given), what+"; add one, or set spec.withInstalled")}
	}
	c.noteIdle()
	slices.SortFunc(all, compareConstraints)
	return all, nil
}

// noteIdle names templates and policies that have nothing to judge by.
func (c *candidates) noteIdle() {
	judging := map[string]bool{}
	for _, constraint := range c.set.At(policy.PointAll) {
		judging[string(constraint.ID.Engine)+constraint.ID.Kind] = true
	}
	for i := range c.given {
		g := &c.given[i]
		kind, err := policy.ConstraintKind(g.obj)
		if g.gk == templateKind && err == nil && !judging[string(policy.EngineGatekeeper)+kind] {
			c.addNote(fmt.Sprintf("%s judges nothing: it has no constraint", g))
		}
		if g.gk == policyKind && !judging[string(policy.EngineValidatingAdmissionPolicy)+g.obj.GetName()] {
			c.addNote(fmt.Sprintf("%s judges nothing: it has no binding", g))
		}
	}
}

func compareConstraints(a, b *policy.Constraint) int {
	return cmp.Or(cmp.Compare(a.ID.Engine, b.ID.Engine), cmp.Compare(a.ID.Kind, b.ID.Kind), cmp.Compare(a.ID.Name, b.ID.Name))
}

// validateCandidates checks their number and size.
func validateCandidates(path *field.Path, spec *v1alpha1.ReviewSpec) field.ErrorList {
	var errs field.ErrorList
	if n := len(spec.CandidatePolicies); n > MaxCandidates {
		errs = append(errs, field.TooMany(path.Child("candidatePolicies"), n, MaxCandidates))
	}
	size := 0
	for i := range spec.CandidatePolicies {
		size += len(spec.CandidatePolicies[i].Raw)
	}
	if size > MaxCandidateBytes {
		errs = append(errs, field.Invalid(path.Child("candidatePolicies"), size, fmt.Sprintf("they are %d bytes together, and may be %d; try fewer at a time", size, MaxCandidateBytes)))
	}
	if spec.WithInstalled && len(spec.CandidatePolicies) == 0 {
		errs = append(errs, field.Forbidden(path.Child("withInstalled"), "it is for candidatePolicies; without these the installed policies judge anyway"))
	}
	return errs
}
