package peer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/open-policy-agent/frameworks/constraint/pkg/client/drivers"
	"github.com/open-policy-agent/frameworks/constraint/pkg/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Question is a set of policies and the objects to be judged by it.
type Question struct {
	Templates   []json.RawMessage
	Constraints []json.RawMessage
	Inventory   []json.RawMessage
	// Expansions are ExpansionTemplates.
	Expansions []json.RawMessage
	Objects    []Object
}

// Object is an object and its Namespace, which may be absent.
type Object struct {
	Object    json.RawMessage
	Namespace json.RawMessage `json:",omitempty"`
}

// Answer says what became of each object of a Question.
type Answer struct {
	// Rejected templates, by kind, and constraints and ExpansionTemplates, by kind/name.
	Rejected map[string]string
	Reviews  []Review
}

// Review is what Gatekeeper's audit says of one object.
type Review struct {
	// Results sorted by constraint, message and details.
	Results []Result
	// Error by which all results were lost.
	Error string
}

// Result is one violation, or an error that is reported as a violation.
type Result struct {
	Kind, Name  string
	Message     string
	Details     json.RawMessage `json:",omitempty"`
	Enforcement string
	Actions     []string // of a scoped constraint, sorted
}

// Evaluate answers a question with a new engine.
func Evaluate(ctx context.Context, q *Question, first ...drivers.Driver) (*Answer, error) {
	a, err := New(first...)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Rejected: map[string]string{}}
	for _, data := range q.Templates {
		obj, err := decode(data)
		if err != nil {
			return nil, err
		}
		if err := a.tryTemplate(ctx, obj); err != nil {
			kind, _, _ := unstructured.NestedString(obj.Object, "spec", "crd", "spec", "names", "kind")
			answer.Rejected[cmp.Or(kind, obj.GetName())] = err.Error()
		}
	}
	for _, data := range q.Constraints {
		obj, err := decode(data)
		if err != nil {
			return nil, err
		}
		if err := a.AddConstraint(ctx, obj); err != nil {
			answer.Rejected[obj.GetKind()+"/"+obj.GetName()] = err.Error()
		}
	}
	for _, data := range q.Expansions {
		obj, err := decode(data)
		if err != nil {
			return nil, err
		}
		if err := a.AddExpansion(obj); err != nil {
			answer.Rejected[obj.GetKind()+"/"+obj.GetName()] = err.Error()
		}
	}
	for _, name := range a.ExpansionConflicts() {
		answer.Rejected["ExpansionTemplate/"+name] = "it is in a circle"
	}
	for _, data := range q.Inventory {
		obj, err := decode(data)
		if err != nil {
			return nil, err
		}
		if err := a.AddInventory(ctx, obj); err != nil {
			return nil, err
		}
	}
	for _, o := range q.Objects {
		review, err := a.evaluate(ctx, o)
		if err != nil {
			return nil, err
		}
		answer.Reviews = append(answer.Reviews, *review)
	}
	return answer, nil
}

// tryTemplate adds a template. That Gatekeeper panics about it is an error, as it
// is in its controllers.
func (a *Audit) tryTemplate(ctx context.Context, obj *unstructured.Unstructured) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return a.AddTemplate(ctx, obj)
}

func (a *Audit) evaluate(ctx context.Context, o Object) (*Review, error) {
	obj, err := decode(o.Object)
	if err != nil {
		return nil, err
	}
	var namespace *corev1.Namespace
	if len(o.Namespace) > 0 {
		u, err := decode(o.Namespace)
		if err != nil {
			return nil, err
		}
		if namespace, err = typedNamespace(u); err != nil {
			return nil, err
		}
	}
	review := &Review{}
	results, lost := a.Review(ctx, obj, namespace)
	if lost != nil {
		review.Error = lost.Error()
	}
	review.Results, err = Convert(results)
	return review, err
}

// Convert brings results into an order, and their details into JSON.
func Convert(results []*types.Result) ([]Result, error) {
	out := make([]Result, 0, len(results))
	for _, r := range results {
		converted := Result{
			Kind:        r.Constraint.GetKind(),
			Name:        r.Constraint.GetName(),
			Message:     r.Msg,
			Enforcement: r.EnforcementAction,
			Actions:     slices.Sorted(slices.Values(r.ScopedEnforcementActions)),
		}
		// The driver makes an empty object of details that are not given.
		if details, found := r.Metadata["details"]; found {
			if m, ok := details.(map[string]any); details != nil && (!ok || len(m) > 0) {
				var err error
				if converted.Details, err = json.Marshal(details); err != nil {
					return nil, fmt.Errorf("details: %w", err)
				}
			}
		}
		out = append(out, converted)
	}
	slices.SortFunc(out, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Message, b.Message), cmp.Compare(string(a.Details), string(b.Details)))
	})
	return out, nil
}

func decode(data []byte) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return obj, nil
}
