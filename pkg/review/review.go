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
	constraints, constraintErrs := e.constraints()
	if errs = append(errs, constraintErrs...); len(errs) > 0 {
		return nil, &InvalidError{errs}
	}
	e.note()
	for i := range subjects {
		e.judge(ctx, &subjects[i], constraints)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d objects were judged: %w", i, len(subjects), context.Cause(ctx))
		}
	}
	e.status.PolicyDigest = policies.Set().Digest()
	e.status.Duration = metav1.Duration{Duration: time.Since(started)}
	return &e.status, nil
}

func pointOf(spec *v1alpha1.ReviewSpec) string {
	if spec.EnforcementPoint == "" {
		return policy.PointAll
	}
	return spec.EnforcementPoint
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
	budget     int                                   // bytes of violations that are left
	status     v1alpha1.ReviewStatus
}

// constraints returns those that are asked for.
func (e *evaluation) constraints() ([]*policy.Constraint, field.ErrorList) {
	all := e.policies.Set().At(e.point)
	if len(e.Spec.Constraints) == 0 {
		return all, nil
	}
	var errs field.ErrorList
	path := field.NewPath("spec", "constraints")
	for i, wanted := range e.Spec.Constraints {
		if slices.ContainsFunc(all, func(c *policy.Constraint) bool { return selects(wanted, c.ID) }) {
			continue
		}
		rejections := e.policies.Set().Rejections()
		if at := slices.IndexFunc(rejections, func(r policy.Rejection) bool { return selects(wanted, r.ID) }); at >= 0 {
			errs = append(errs, field.Invalid(path.Index(i), wanted.Kind+"/"+wanted.Name, "it is rejected: "+rejections[at].Message))
		} else {
			errs = append(errs, field.NotFound(path.Index(i), wanted.Kind+"/"+wanted.Name))
		}
	}
	return slices.DeleteFunc(all, func(c *policy.Constraint) bool {
		return !slices.ContainsFunc(e.Spec.Constraints, func(wanted v1alpha1.ReviewConstraint) bool { return selects(wanted, c.ID) })
	}), errs
}

func selects(wanted v1alpha1.ReviewConstraint, id policy.ConstraintID) bool {
	return (wanted.Engine == "" || wanted.Engine == string(id.Engine)) && wanted.Kind == id.Kind && (wanted.Name == "" || wanted.Name == id.Name)
}

// note says which policies are not there to judge by.
func (e *evaluation) note() {
	if n := len(e.policies.Set().Rejections()); n > 0 {
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
	namespace := e.namespaceOf(s)
	if e.point == policy.PointAudit {
		e.take(s, nil, policy.Review(ctx, policy.NewObject(s.kind, s.judged(), namespace), constraints))
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
	e.take(s, nil, policy.Review(ctx, policy.NewRequest(s.kind, request, namespace), constraints))
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
		e.take(s, &pod, policy.Review(ctx, policy.NewRequest(podKind, request, namespace), others))
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

// namespaceOf returns the Namespace that an object is in, nil if it is in none or it is
// not known.
func (e *evaluation) namespaceOf(s *subject) *unstructured.Unstructured {
	name := s.judged().GetNamespace()
	if name == "" {
		return nil
	}
	if namespace := e.namespaces[name]; namespace != nil {
		return namespace
	}
	namespace := e.policies.Namespace(name)
	if namespace == nil {
		e.addNote(fmt.Sprintf("there is no Namespace %s; it can be given in spec.namespaceObjects", name))
	}
	return namespace
}
