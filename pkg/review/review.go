package review

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

// Policies is what objects are judged by: a snapshot that does not change meanwhile.
type Policies interface {
	Set() *policy.Set
	// Missing returns the kinds of policies that cannot be listed.
	Missing() []string
	// Namespace returns a Namespace, nil if there is none. It is not modified.
	Namespace(name string) *unstructured.Unstructured
	// Kind returns a kind in its preferred version; ok is false if there is none. The
	// error says why that is not known.
	Kind(gk schema.GroupKind) (kind policy.Kind, ok bool, err error)
	// Kinds returns all kinds in their preferred versions, those in which they are served
	// besides, and why the kinds of some API groups are not known.
	Kinds() (preferred, others []policy.Kind, failedGroups map[string]error)
	// Namespaces returns the names of the Namespaces, sorted.
	Namespaces() []string
}

// Reading is something to be read: an object, or the objects of a kind in a namespace, or
// in all of them.
type Reading struct {
	Verb            string // get or list
	Kind            policy.Kind
	Namespace, Name string
}

// Reader reads live objects for who asks. It is safe for concurrent use.
type Reader interface {
	// Allowed returns why who asks may not read something, nil if they may. The methods
	// below do not ask.
	Allowed(ctx context.Context, r Reading) error
	// Get returns an object. The error is one of the API.
	Get(ctx context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error)
	// List hands over objects page by page. namespace is empty for all, and so is selector,
	// of labels.
	List(ctx context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error
}

// Request is a review that is asked for.
type Request struct {
	Spec *v1alpha1.ReviewSpec
	// Namespace that all objects have to be in, empty if it does not matter.
	Namespace string
	// User who makes the requests that objects are judged as part of.
	User policy.User
	// Live is the object that Spec.Resource refers to.
	Live *unstructured.Unstructured
	// Reader of live objects. nil if there are none: candidates may read what there is
	// then, and a scope is an error.
	Reader Reader
	// Authorizer that policies may ask, nil if there is none.
	Authorizer cel.Asker
	// GuessKind tells resource and scope of kinds that Policies do not know; inNamespace
	// tells that the object has a namespace, and known is false if it is a guess. nil
	// makes such kinds errors.
	GuessKind func(gvk schema.GroupVersionKind, inNamespace bool) (kind policy.Kind, known bool)
}

// InvalidError says what is wrong with a request.
type InvalidError struct{ Errors field.ErrorList }

// Error implements error.
func (e *InvalidError) Error() string { return e.Errors.ToAggregate().Error() }

// Evaluate answers a review. The error is an *InvalidError, or that of a context that
// was done before the answer was complete.
func Evaluate(ctx context.Context, policies Policies, r Request) (*v1alpha1.ReviewStatus, error) {
	started := time.Now()
	errs := Validate(r.Spec)
	if len(errs) > 0 {
		return nil, &InvalidError{errs}
	}
	e := &evaluation{Request: r, policies: policies, point: pointOf(r.Spec), budget: maxAnswerBytes}
	e.status.Allowed = true
	subjects, errs := e.decode()
	constraints, constraintErrs := e.constraints(ctx)
	if ctx.Err() != nil {
		// What is wrong may be that they were not compiled to the end.
		return nil, fmt.Errorf("the policies were being compiled: %w", context.Cause(ctx))
	}
	if errs = append(errs, constraintErrs...); len(errs) > 0 {
		return nil, &InvalidError{errs}
	}
	e.note()
	if r.Spec.Scope != nil {
		if err := e.judgeScope(ctx, constraints); err != nil {
			return nil, err
		}
	}
	for i := range subjects {
		e.judge(ctx, &subjects[i], constraints)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d objects were judged: %w", i, len(subjects), context.Cause(ctx))
		}
	}
	e.status.PolicyDigest = e.digest
	e.status.Duration = metav1.Duration{Duration: time.Since(started)}
	return &e.status, nil
}

func pointOf(spec *v1alpha1.ReviewSpec) string {
	switch {
	case spec.EnforcementPoint != "":
		return spec.EnforcementPoint
	case spec.Scope != nil:
		return policy.PointAudit
	}
	return policy.PointAll
}

func operationOf(spec *v1alpha1.ReviewSpec) v1alpha1.ReviewOperation {
	if spec.Operation == "" {
		return v1alpha1.ReviewCreate
	}
	return spec.Operation
}

// evaluation of a review.
type evaluation struct {
	Request
	policies   Policies
	point      string
	namespaces map[string]*unstructured.Unstructured // that the request has
	// candidates are the constraints that are not installed as they are.
	candidates map[*policy.Constraint]bool
	// judging are the sets whose rejections matter.
	judging []*policy.Set
	digest  string
	budget  int // bytes of violations that are left
	status  v1alpha1.ReviewStatus
}

// constraints returns those that are asked for.
func (e *evaluation) constraints(ctx context.Context) ([]*policy.Constraint, field.ErrorList) {
	var all []*policy.Constraint
	if len(e.Spec.CandidatePolicies) > 0 {
		var errs field.ErrorList
		if all, errs = e.candidateConstraints(ctx); len(errs) > 0 {
			return nil, errs
		}
	} else {
		set := e.policies.Set()
		e.judging, e.digest = []*policy.Set{set}, set.Digest()
		all = set.At(e.point)
	}
	if len(e.Spec.Constraints) == 0 {
		return all, nil
	}
	var errs field.ErrorList
	path := field.NewPath("spec", "constraints")
	for i, wanted := range e.Spec.Constraints {
		if slices.ContainsFunc(all, func(c *policy.Constraint) bool { return selects(wanted, c.ID) }) {
			continue
		}
		if rejection := e.rejection(wanted); rejection != nil {
			errs = append(errs, field.Invalid(path.Index(i), wanted.Kind+"/"+wanted.Name, "it is rejected: "+rejection.Message))
		} else {
			errs = append(errs, field.NotFound(path.Index(i), wanted.Kind+"/"+wanted.Name))
		}
	}
	return slices.DeleteFunc(all, func(c *policy.Constraint) bool {
		return !slices.ContainsFunc(e.Spec.Constraints, func(wanted v1alpha1.ReviewConstraint) bool { return selects(wanted, c.ID) })
	}), errs
}

// rejection returns why a constraint judges nothing, nil if it is not rejected.
func (e *evaluation) rejection(wanted v1alpha1.ReviewConstraint) *policy.Rejection {
	for _, set := range e.judging {
		rejections := set.Rejections()
		if at := slices.IndexFunc(rejections, func(r policy.Rejection) bool { return selects(wanted, r.ID) }); at >= 0 {
			return &rejections[at]
		}
	}
	return nil
}

func selects(wanted v1alpha1.ReviewConstraint, id policy.ConstraintID) bool {
	return (wanted.Engine == "" || wanted.Engine == string(id.Engine)) && wanted.Kind == id.Kind && (wanted.Name == "" || wanted.Name == id.Name)
}

// note says which policies are not there to judge by.
func (e *evaluation) note() {
	if len(e.judging) == 0 {
		return
	}
	if n := len(e.judging[0].Rejections()); n > 0 {
		e.addNote(fmt.Sprintf("%d policies are rejected and judge nothing; constraintsummaries say why", n))
	}
	for _, kind := range e.policies.Missing() {
		e.addNote(fmt.Sprintf("policies of kind %s cannot be listed and judge nothing", kind))
	}
}

func (e *evaluation) addNote(note string) {
	if !slices.Contains(e.status.Notes, note) {
		e.status.Notes = append(e.status.Notes, note)
	}
}

// judge judges an object and what it implies.
func (e *evaluation) judge(ctx context.Context, s *subject, constraints []*policy.Constraint) {
	namespace := e.namespaceOf(ctx, s)
	if e.point == policy.PointAudit {
		e.take(s, nil, e.review(ctx, namespace, constraints, func(namespace *unstructured.Unstructured) *policy.Object {
			return policy.NewObject(s.kind, s.judged(), namespace)
		}))
		return
	}
	operation := operationOf(e.Spec)
	request := policy.Request{
		UID:        string(uuid.NewUUID()),
		Operation:  string(operation),
		Object:     s.object,
		OldObject:  s.old,
		User:       e.User,
		Options:    optionsOf(operation),
		Authorizer: e.Authorizer,
	}
	e.take(s, nil, e.review(ctx, namespace, constraints, func(namespace *unstructured.Unstructured) *policy.Object {
		return policy.NewRequest(s.kind, request, namespace)
	}))
	if operation == v1alpha1.ReviewDelete {
		return
	}
	gvk := s.object.GroupVersionKind()
	// ExpansionTemplates say better what comes of a workload.
	others := slices.DeleteFunc(slices.Clone(constraints), func(c *policy.Constraint) bool {
		return c.SelectsResultants(gvk, podKind.GroupKind())
	})
	for _, pod := range impliedPods(s.object) {
		request := policy.Request{
			UID:        string(uuid.NewUUID()),
			Operation:  policy.OperationCreate,
			Object:     pod.object,
			User:       pod.creator,
			Options:    optionsOf(v1alpha1.ReviewCreate),
			Authorizer: e.Authorizer,
		}
		e.take(s, &pod, e.review(ctx, namespace, others, func(namespace *unstructured.Unstructured) *policy.Object {
			return policy.NewRequest(podKind, request, namespace)
		}))
	}
}

// optionsOf are those that the API server gives webhooks if a client sends none.
func optionsOf(operation v1alpha1.ReviewOperation) map[string]any {
	kind := map[v1alpha1.ReviewOperation]string{
		v1alpha1.ReviewCreate: "CreateOptions",
		v1alpha1.ReviewUpdate: "UpdateOptions",
		v1alpha1.ReviewDelete: "DeleteOptions",
	}[operation]
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": kind}
}

// namespaceOf returns the Namespace that an object is in.
func (e *evaluation) namespaceOf(ctx context.Context, s *subject) namespaceOf {
	name := s.judged().GetNamespace()
	if name == "" {
		return namespaceOf{}
	}
	if namespace := e.namespaces[name]; namespace != nil {
		return namespaceOf{object: namespace, shown: namespace}
	}
	namespace := e.policies.Namespace(name)
	if namespace == nil {
		e.addNote(fmt.Sprintf("there is no Namespace %s; it can be given in spec.namespaceObjects", name))
		return namespaceOf{}
	}
	of := namespaceOf{object: namespace, shown: namespace}
	if len(e.candidates) > 0 {
		reading := Reading{Verb: "get", Kind: policy.Kind{GroupVersionKind: namespaceKind.WithVersion("v1"), Resource: "namespaces"}, Name: name}
		if err := e.allowed(ctx, reading); err != nil {
			of.shown = nil
			e.addNote(fmt.Sprintf("candidatePolicies do not see the Namespace %s: %v", name, err))
		}
	}
	return of
}

// namespaceOf is the Namespace that an object is in, nil if it is in none or it is not
// known.
type namespaceOf struct {
	object *unstructured.Unstructured
	// shown is what candidates see of it: nothing if who asks may not get it.
	shown *unstructured.Unstructured
}

// review judges an object, which make makes with its Namespace.
func (e *evaluation) review(ctx context.Context, namespace namespaceOf, constraints []*policy.Constraint, make func(namespace *unstructured.Unstructured) *policy.Object) []policy.Verdict {
	if namespace.object == namespace.shown {
		return policy.Review(ctx, make(namespace.object), constraints)
	}
	var candidates, installed []*policy.Constraint
	for _, c := range constraints {
		if e.candidates[c] {
			candidates = append(candidates, c)
		} else {
			installed = append(installed, c)
		}
	}
	verdicts := append(policy.Review(ctx, make(namespace.shown), candidates), policy.Review(ctx, make(namespace.object), installed)...)
	slices.SortFunc(verdicts, func(a, b policy.Verdict) int { return compareConstraints(a.Constraint, b.Constraint) })
	return verdicts
}

// allowed returns why who asks may not read something, nil if they may.
func (e *evaluation) allowed(ctx context.Context, r Reading) error {
	if e.Reader == nil {
		return nil
	}
	return e.Reader.Allowed(ctx, r)
}
