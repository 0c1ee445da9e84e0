package review

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// Limits of the answer. What is beyond is cut and the verdict marked truncated.
const (
	maxViolations   = 100
	maxMessageBytes = 8 << 10
	maxDetailsBytes = 32 << 10
	// maxAnswerBytes is for all messages and details together; beyond it messages have
	// minMessageBytes.
	maxAnswerBytes  = 4 << 20
	minMessageBytes = 256
	// maxVerdicts is how many verdicts are listed. All are counted.
	maxVerdicts = 10_000
)

const actionDeny = "deny"

// take enters verdicts on an object, or on what it implies, into the answer.
func (e *evaluation) take(s *subject, of *implied, verdicts []policy.Verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		result := resultOf(v.Outcome)
		e.count(result, slices.Contains(v.ActionsAt(e.point), actionDeny))
		switch {
		case result == v1alpha1.ReviewNotMatched && !e.Spec.Explain:
		case len(e.status.Verdicts) == maxVerdicts:
			e.addNote(fmt.Sprintf("there are more than %d verdicts; the others are counted and not listed", maxVerdicts))
		default:
			e.status.Verdicts = append(e.status.Verdicts, e.verdict(s, of, v, result))
		}
	}
}

func (e *evaluation) count(result v1alpha1.ReviewResult, denies bool) {
	switch result {
	case v1alpha1.ReviewNotMatched:
		return
	case v1alpha1.ReviewDeferred:
		e.status.Deferred++
	default:
		e.status.Evaluated++
	}
	switch result {
	case v1alpha1.ReviewPass:
		return
	case v1alpha1.ReviewFail:
		e.status.Failed++
	case v1alpha1.ReviewError:
		e.status.Errors++
	}
	e.status.Allowed = e.status.Allowed && !denies
}

func (e *evaluation) verdict(s *subject, of *implied, v *policy.Verdict, result v1alpha1.ReviewResult) v1alpha1.ReviewVerdict {
	c := v.Constraint
	out := v1alpha1.ReviewVerdict{
		Index:              int32(s.index),
		Resource:           referenceTo(s.judged()),
		Constraint:         constraintReference(c),
		EnforcementAction:  v.EnforcementAction,
		EnforcementActions: v.ActionsAt(e.point),
		Result:             result,
		Reason:             v.Reason,
	}
	mark := ""
	if of != nil {
		pod := referenceTo(of.object)
		out.Implied = &pod
		mark = fmt.Sprintf("[Implied by %s] ", of.by)
	}
	if v.Message != "" {
		out.Message = e.text(&out, mark+v.Message)
	}
	for i := range v.Violations {
		if i == maxViolations || e.budget <= 0 {
			out.Truncated = true
			break
		}
		violation := v1alpha1.Violation{Message: e.text(&out, mark+v.Violations[i].Message)}
		switch details := v.Violations[i].Details; {
		case len(details) > maxDetailsBytes || len(details) > e.budget:
			out.Truncated = true
		case len(details) > 0:
			violation.Details = &runtime.RawExtension{Raw: details}
			e.budget -= len(details)
		}
		out.Violations = append(out.Violations, violation)
	}
	return out
}

// text returns a message, cut if it is too long, and takes it off the budget.
func (e *evaluation) text(v *v1alpha1.ReviewVerdict, message string) string {
	limit := maxMessageBytes
	if e.budget <= 0 {
		limit = minMessageBytes
	}
	if len(message) > limit {
		v.Truncated = true
		message = cut(message, limit)
	}
	e.budget -= len(message)
	return message
}

// cut returns at most limit bytes of a text.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

func constraintReference(c *policy.Constraint) v1alpha1.ConstraintReference {
	return v1alpha1.ConstraintReference{Engine: v1alpha1.Engine(c.ID.Engine), Kind: c.ID.Kind, Name: c.ID.Name, UID: c.UID, Generation: c.Generation}
}

func referenceTo(obj *unstructured.Unstructured) v1alpha1.ResourceReference {
	name := obj.GetName()
	if name == "" {
		name = obj.GetGenerateName()
	}
	return v1alpha1.ResourceReference{
		APIGroup:        obj.GroupVersionKind().Group,
		APIVersion:      obj.GetAPIVersion(),
		Kind:            obj.GetKind(),
		Namespace:       obj.GetNamespace(),
		Name:            name,
		UID:             obj.GetUID(),
		ResourceVersion: obj.GetResourceVersion(),
		Generation:      obj.GetGeneration(),
	}
}

func resultOf(o policy.Outcome) v1alpha1.ReviewResult {
	switch o {
	case policy.NotMatched:
		return v1alpha1.ReviewNotMatched
	case policy.Pass:
		return v1alpha1.ReviewPass
	case policy.Fail:
		return v1alpha1.ReviewFail
	case policy.Deferred:
		return v1alpha1.ReviewDeferred
	default:
		return v1alpha1.ReviewError
	}
}
