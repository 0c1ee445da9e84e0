package enforcement

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/policy/match"
)

const (
	actionDeny = "deny"
	actionWarn = "warn"

	// maxLines is how many violations a denial names, and as many warnings there are.
	maxLines = 100
	// maxLineBytes bounds each of them.
	maxLineBytes = 4 << 10

	// digestAnnotation is in the audit log of the API server, behind the webhook's name.
	digestAnnotation = "policy-digest"
)

// answer answers a request. The error is one of the API, and says why it is not judged.
func (w *Webhook) answer(ctx context.Context, r *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, string, error) {
	kind, request, err := subject(r)
	if err != nil {
		return nil, "", err
	}
	if w.exempt(r) {
		return &admissionv1.AdmissionResponse{Allowed: true}, resultExempt, nil
	}
	policies, err := w.config.Policies()
	if err != nil {
		return nil, "", apierrors.NewServiceUnavailable(fmt.Sprintf("the policies are not loaded yet: %v", err))
	}
	namespace, err := w.namespaceOf(ctx, policies, request.Attributes.Namespace)
	if err != nil {
		return nil, "", err
	}
	select {
	case w.workers <- struct{}{}:
		defer func() { <-w.workers }()
	case <-ctx.Done():
		return nil, "", timedOut(ctx, "it has waited for others to be judged")
	}
	constraints := w.constraints(policies.Set())
	verdicts := policy.Review(ctx, policy.NewRequest(kind, request, namespace), constraints)
	out := outcome{interrupted: ctx.Err() != nil}
	for i := range verdicts {
		out.take(&verdicts[i])
		if !out.interrupted {
			w.observe(ctx, r, &verdicts[i])
		}
	}
	response := &admissionv1.AdmissionResponse{
		Allowed:          true,
		Warnings:         out.warnings.text(),
		AuditAnnotations: map[string]string{digestAnnotation: policies.Set().Digest()},
	}
	switch {
	case len(out.denials.kept) > 0:
		response.Allowed = false
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: strings.Join(out.denials.text(), "\n"),
		}
		return response, resultDenied, nil
	case out.interrupted:
		return nil, "", timedOut(ctx, fmt.Sprintf("not all of the %d constraints were evaluated", len(constraints)))
	case len(out.unjudged.kept) > 0:
		return nil, "", apierrors.NewServiceUnavailable("constraints that deny cannot be evaluated yet: " + strings.Join(out.unjudged.text(), "; "))
	case len(response.Warnings) > 0:
		return response, resultWarned, nil
	}
	return response, resultAllowed, nil
}

func timedOut(ctx context.Context, what string) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return apierrors.NewTimeoutError("the API server has gone away; "+what, 0)
	}
	return apierrors.NewTimeoutError(fmt.Sprintf("%v; %s", context.Cause(ctx), what), 0)
}

// exempt tells whether a request is for something in a namespace in which nothing is
// judged, or for such a Namespace.
func (w *Webhook) exempt(r *admissionv1.AdmissionRequest) bool {
	name := r.Namespace
	if isNamespace(r) {
		name = r.Name
	}
	return name != "" && slices.ContainsFunc(w.config.Exempt, func(pattern string) bool { return match.Wildcard(pattern, name) })
}

// namespaceOf returns the Namespace of a request, nil if it is in none, or in one that
// does not exist.
func (w *Webhook) namespaceOf(ctx context.Context, policies Policies, name string) (*unstructured.Unstructured, error) {
	if name == "" {
		return nil, nil
	}
	if namespace := policies.Namespace(name); namespace != nil {
		return namespace, nil
	}
	namespace, err := w.config.ReadNamespace(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case ctx.Err() != nil:
		return nil, timedOut(ctx, "it has waited for the Namespace "+name)
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the Namespace %s cannot be read: %v", name, err))
	}
	return namespace, nil
}

// constraints returns those of a set that are enforced here.
func (w *Webhook) constraints(set *policy.Set) []*policy.Constraint {
	if known := w.enforced.Load(); known != nil && known.set == set {
		return known.constraints
	}
	found := &enforced{set: set, constraints: set.At(policy.PointWebhook)}
	w.enforced.Store(found)
	return found.constraints
}

// outcome of judging a request.
type outcome struct {
	// interrupted tells that the time was over before all constraints were evaluated.
	// Errors may be due to that; what was found is so all the same.
	interrupted bool
	denials     lines
	warnings    lines
	// unjudged are constraints that deny and whose data is not loaded.
	unjudged lines
}

// take takes up a verdict.
func (o *outcome) take(v *policy.Verdict) {
	actions := v.ActionsAt(policy.PointWebhook)
	denies, warns := slices.Contains(actions, actionDeny), slices.Contains(actions, actionWarn)
	say := func(message string) {
		line := fmt.Sprintf("[%s] %s", v.Constraint.ID.Name, message)
		if denies {
			o.denials.add(line)
		}
		if warns {
			o.warnings.add(line)
		}
	}
	switch v.Outcome {
	case policy.Fail:
		for i := range v.Violations {
			say(v.Violations[i].Message)
		}
		if v.Message != "" && !o.interrupted {
			say("the constraint could not be evaluated as a whole: " + v.Message)
		}
	case policy.Error:
		if !o.interrupted {
			say("the constraint could not be evaluated: " + v.Message)
		}
	case policy.Deferred:
		// Nobody has said anything against the request yet.
		line := fmt.Sprintf("[%s] %s", v.Constraint.ID.Name, v.Message)
		if denies {
			o.unjudged.add(line)
		}
		if warns {
			o.warnings.add(line)
		}
	}
}

// lines of an answer, of which so many are kept.
type lines struct {
	kept []string
	more int
}

func (l *lines) add(line string) {
	if len(l.kept) == maxLines {
		l.more++
		return
	}
	if len(line) > maxLineBytes {
		line = strings.ToValidUTF8(line[:maxLineBytes], "") + "..."
	}
	l.kept = append(l.kept, line)
}

func (l *lines) text() []string {
	if l.more == 0 {
		return l.kept
	}
	return append(slices.Clip(l.kept), fmt.Sprintf("and %d more", l.more))
}

// observe counts and logs a verdict that is neither that all is well nor that the
// constraint does not apply.
func (w *Webhook) observe(ctx context.Context, r *admissionv1.AdmissionRequest, v *policy.Verdict) {
	result, ok := verdictResults[v.Outcome]
	if !ok {
		return
	}
	actions := v.ActionsAt(policy.PointWebhook)
	for _, action := range actions {
		w.metrics.verdict(action, result)
	}
	klog.FromContext(ctx).V(2).Info("A constraint is not met by an admission request",
		"constraintKind", v.Constraint.ID.Kind, "constraint", v.Constraint.ID.Name, "actions", actions, "result", result,
		"operation", r.Operation, "resource", r.Resource.Resource, "subresource", r.SubResource, "namespace", r.Namespace, "name", r.Name,
		"user", r.UserInfo.Username, "dryRun", r.DryRun != nil && *r.DryRun)
}
