package review

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	engine "policy.example.io/policy-apiserver/pkg/review"
)

const (
	// deadline of a review. A policy that does not end is stopped much earlier.
	deadline = 20 * time.Second
	// scopeDeadline is that of a review of a scope whose request has none.
	scopeDeadline = 30 * time.Second
	// notReadyRetrySeconds is when a client should ask again while policies are loaded.
	notReadyRetrySeconds = 2
)

// Backend is what reviews are answered from.
type Backend struct {
	// Policies returns what objects are judged by, or what that waits for.
	Policies func() (engine.Policies, error)
	// Read returns an object as it is. The error is one of the API.
	Read func(ctx context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error)
	// List hands over the objects of a kind as they are, page by page. namespace is empty
	// for all, and so is selector, of labels. The error is one of the API, or that of page.
	List func(ctx context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error
	// Authorizer knows what users may do.
	Authorizer authorizer.UnconditionalAuthorizer
	// AskAuthorizer lets ValidatingAdmissionPolicies ask the authorizer too.
	AskAuthorizer bool
	// GuessKind tells resource and scope of kinds that the source does not have. nil
	// makes such kinds errors.
	GuessKind func(gvk schema.GroupVersionKind, inNamespace bool) (kind policy.Kind, known bool)
}

// REST serves reviews or localreviews.
type REST struct {
	backend Backend
	local   bool
	limits  *limiter
}

var (
	_ rest.Storage              = (*REST)(nil)
	_ rest.Scoper               = (*REST)(nil)
	_ rest.Creater              = (*REST)(nil)
	_ rest.SingularNameProvider = (*REST)(nil)
)

// NewREST returns the storage of reviews.
func NewREST(backend Backend) *REST { return &REST{backend: backend, limits: newLimiter()} }

// Local returns the storage of localreviews. They share the limits of the reviews.
func (r *REST) Local() *REST { return &REST{backend: r.backend, local: true, limits: r.limits} }

// New implements rest.Storage.
func (r *REST) New() runtime.Object {
	if r.local {
		return &v1alpha1.LocalReview{}
	}
	return &v1alpha1.Review{}
}

// Destroy implements rest.Storage. There is nothing to destroy.
func (r *REST) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *REST) NamespaceScoped() bool { return r.local }

// GetSingularName implements rest.SingularNameProvider.
func (r *REST) GetSingularName() string {
	if r.local {
		return "localreview"
	}
	return "review"
}

// Create implements rest.Creater: it answers the review. A dry run is no different.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	switch in := obj.(type) {
	case *v1alpha1.Review:
		out := &v1alpha1.Review{TypeMeta: in.TypeMeta, ObjectMeta: answered(in.ObjectMeta), Spec: in.Spec}
		return out, r.answer(ctx, &out.Spec, &out.Status, "")
	case *v1alpha1.LocalReview:
		out := &v1alpha1.LocalReview{TypeMeta: in.TypeMeta, ObjectMeta: answered(in.ObjectMeta), Spec: in.Spec}
		return out, r.answer(ctx, &out.Spec, &out.Status, genericapirequest.NamespaceValue(ctx))
	}
	return nil, apierrors.NewBadRequest(fmt.Sprintf("not a review: %T", obj))
}

// answered is the metadata of an answer. There are no fields to manage.
func answered(meta metav1.ObjectMeta) metav1.ObjectMeta {
	meta.ManagedFields = nil
	return meta
}

// answer fills in the status. namespace is that of a LocalReview.
func (r *REST) answer(ctx context.Context, spec *v1alpha1.ReviewSpec, status *v1alpha1.ReviewStatus, namespace string) error {
	policies, err := r.backend.Policies()
	if err != nil {
		return r.unavailable(err)
	}
	if errs := engine.Validate(spec); len(errs) > 0 {
		return r.invalid(errs)
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errNoUser)
	}
	if len(spec.CandidatePolicies) > 0 || spec.Scope != nil {
		leave, err := r.enter(ctx, spec, requester, namespace)
		if err != nil {
			return err
		}
		defer leave()
	}
	limit := timeout(ctx, spec)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request := engine.Request{Spec: spec, Namespace: namespace, GuessKind: r.backend.GuessKind, Reader: newReader(r, requester)}
	if r.backend.AskAuthorizer {
		request.Authorizer = r.backend.Authorizer
	}
	if request.User, err = r.user(ctx, spec.UserInfo); err != nil {
		return err
	}
	if request.Live, err = r.live(ctx, policies, spec.Resource, namespace); err != nil {
		return err
	}
	answer, err := engine.Evaluate(ctx, policies, request)
	var invalid *engine.InvalidError
	switch {
	case errors.As(err, &invalid):
		return r.invalid(invalid.Errors)
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError(fmt.Sprintf("the review did not end within %v: %v; review fewer objects, or by fewer constraints", limit.Round(time.Millisecond), err), 0)
	case err != nil:
		return err
	}
	*status = *answer
	audit.AddAuditAnnotations(ctx,
		v1alpha1.GroupName+"/review-allowed", strconv.FormatBool(answer.Allowed),
		v1alpha1.GroupName+"/policy-digest", answer.PolicyDigest)
	return nil
}

// enter lets a review with candidates or a scope in. The programs of candidates run in
// this server, so that it takes a right to bring some.
func (r *REST) enter(ctx context.Context, spec *v1alpha1.ReviewSpec, requester user.Info, namespace string) (leave func(), err error) {
	if len(spec.CandidatePolicies) > 0 {
		if err := r.authorize(ctx, authorizer.AttributesRecord{
			User: requester, Verb: "create", ResourceRequest: true,
			APIGroup: v1alpha1.GroupName, APIVersion: v1alpha1.SchemeGroupVersion.Version, Resource: r.GetSingularName() + "s", Subresource: "candidates", Namespace: namespace,
		}); err != nil {
			return nil, err
		}
	}
	return r.limits.enter(requester.GetName())
}

// timeout of a review: of a scope, what the request has less some for the answer, because
// it is a part of one if the time is up.
func timeout(ctx context.Context, spec *v1alpha1.ReviewSpec) time.Duration {
	if spec.Scope == nil {
		return deadline
	}
	if end, ok := ctx.Deadline(); ok {
		return time.Until(end) * 9 / 10
	}
	return scopeDeadline
}

func (r *REST) invalid(errs field.ErrorList) error {
	kind := "Review"
	if r.local {
		kind = "LocalReview"
	}
	return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind(kind).GroupKind(), "", errs)
}

// unavailable is 503 with Retry-After.
func (r *REST) unavailable(err error) error {
	resource := v1alpha1.Resource(r.GetSingularName() + "s")
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be answered at the moment: %v", resource, err))
	status.ErrStatus.Details = &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource, RetryAfterSeconds: notReadyRetrySeconds}
	return status
}
