package differential

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/test/differential/engine"
	"policy.example.io/policy-apiserver/test/differential/peer"
)

// Outcomes that both engines can be said to have. Gatekeeper does not tell an
// object that complies from one that is not matched.
const (
	none     = "none"
	violated = "violated"
	failed   = "error"    // this engine only: could not be evaluated
	deferred = "deferred" // this engine only: needs data that it does not load
	lost     = "lost"     // Gatekeeper only: nothing is said of the object at all
	rejected = "rejected" // the template or the constraint is not evaluated

	manyActions = "several actions" // Gatekeeper only: each violation has its own
)

// verdict is what an engine says of one object and one constraint.
type verdict struct {
	Outcome    string
	Violations []string // messages with details, sorted
	Message    string   // of an outcome other than violated, or of what else failed
	Action     string   // of violations, manyActions if theirs differ
	Actions    []string // of violations of scoped constraints
}

func (v verdict) String() string {
	text := v.Outcome
	if len(v.Violations) > 0 {
		text += fmt.Sprintf(" %q, action %s %v", v.Violations, v.Action, v.Actions)
	}
	if v.Message != "" {
		text += ": " + v.Message
	}
	return text
}

// agrees compares verdicts but for the messages of errors. It matters whether there
// is one beside violations.
func (v verdict) agrees(w verdict) bool {
	return v.Outcome == w.Outcome && (v.Outcome != violated || (v.Message == "") == (w.Message == "")) && v.Action == w.Action && slices.Equal(v.Violations, w.Violations) && slices.Equal(v.Actions, w.Actions)
}

// reporter is what *testing.T and *rapid.T have in common.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// question is what both engines are asked.
type question struct {
	templates, constraints, expansions, inventory []*unstructured.Unstructured
	objects                                       []object
}

// object is an object and its Namespace, which may be nil.
type object struct {
	name      string
	obj       *unstructured.Unstructured
	namespace *unstructured.Unstructured
}

// subject names what a verdict is of. Object is empty for templates and
// ExpansionTemplates.
type subject struct{ Constraint, Object string }

func constraintID(obj *unstructured.Unstructured) string { return obj.GetKind() + "/" + obj.GetName() }

// templateID is the kind of a template's constraints, or its name.
func templateID(obj *unstructured.Unstructured) string {
	if kind, _, _ := unstructured.NestedString(obj.Object, "spec", "crd", "spec", "names", "kind"); kind != "" {
		return kind
	}
	return obj.GetName()
}

// verdicts begins the verdicts of an engine with what it rejects. It returns
// whether a constraint is among that.
func (q *question) verdicts(rejections map[string]string) (map[subject]verdict, func(id string) bool) {
	out := map[subject]verdict{}
	var ids []string
	for _, t := range q.templates {
		ids = append(ids, templateID(t))
	}
	for _, e := range q.expansions {
		ids = append(ids, constraintID(e))
	}
	for _, id := range ids {
		out[subject{Constraint: id}] = verdict{Outcome: none}
		if message, ok := rejections[id]; ok {
			out[subject{Constraint: id}] = verdict{Outcome: rejected, Message: message}
		}
	}
	return out, func(id string) bool {
		message, ok := rejections[id]
		for _, o := range q.objects {
			out[subject{id, o.name}] = verdict{Outcome: none}
			if ok {
				out[subject{id, o.name}] = verdict{Outcome: rejected, Message: message}
			}
		}
		return ok
	}
}

// ours asks this engine.
func (q *question) ours(ctx context.Context, t reporter) map[subject]verdict {
	t.Helper()
	set, err := engine.CompileAll(ctx, q.templates, q.constraints, q.expansions, q.inventory)
	if err != nil {
		t.Fatal(err)
	}
	out, begin := q.verdicts(set.Rejected())
	for _, c := range q.constraints {
		begin(constraintID(c))
	}
	for _, o := range q.objects {
		for _, v := range set.Review(ctx, o.obj, o.namespace) {
			var converted verdict
			switch v.Outcome {
			case engine.NotMatched, engine.Pass:
				converted.Outcome = none
			case engine.Error:
				converted = verdict{Outcome: failed, Message: v.Message}
			case engine.Deferred:
				converted = verdict{Outcome: deferred, Message: v.Message}
			case engine.Fail:
				converted = verdict{Outcome: violated, Message: v.Message, Action: v.EnforcementAction, Actions: v.Constraint.EnforcementActions}
				for _, violation := range v.Violations {
					converted.Violations = append(converted.Violations, violation.Message+string(violation.Details))
				}
				slices.Sort(converted.Violations)
			}
			out[subject{v.Constraint.ID.Kind + "/" + v.Constraint.ID.Name, o.name}] = converted
		}
	}
	return out
}

// theirs asks Gatekeeper's.
func (q *question) theirs(ctx context.Context, t reporter, ask func(context.Context, *peer.Question) (*peer.Answer, error)) map[subject]verdict {
	t.Helper()
	request := &peer.Question{Templates: encode(t, q.templates...), Constraints: encode(t, q.constraints...), Inventory: encode(t, q.inventory...), Expansions: encode(t, q.expansions...)}
	for _, o := range q.objects {
		asked := peer.Object{Object: encode(t, o.obj)[0]}
		if o.namespace != nil {
			asked.Namespace = encode(t, o.namespace)[0]
		}
		request.Objects = append(request.Objects, asked)
	}
	answer, err := ask(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	out, begin := q.verdicts(answer.Rejected)
	evaluated := map[string]bool{}
	for _, c := range q.constraints {
		evaluated[constraintID(c)] = !begin(constraintID(c))
	}
	for i, o := range q.objects {
		review := answer.Reviews[i]
		for id := range evaluated {
			if evaluated[id] && review.Error != "" {
				out[subject{id, o.name}] = verdict{Outcome: lost, Message: review.Error}
			}
		}
		for _, r := range review.Results {
			s := subject{r.Kind + "/" + r.Name, o.name}
			v := out[s]
			if v.Outcome == violated && v.Action != r.Enforcement {
				v.Action = manyActions
			} else {
				v.Action = r.Enforcement
			}
			v.Outcome, v.Actions = violated, r.Actions
			v.Violations = append(v.Violations, r.Message+string(r.Details))
			slices.Sort(v.Violations)
			out[s] = v
		}
	}
	return out
}

func encode(t reporter, objects ...*unstructured.Unstructured) []json.RawMessage {
	t.Helper()
	var out []json.RawMessage
	for _, obj := range objects {
		data, err := json.Marshal(obj.Object)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, data)
	}
	return out
}

// compare tells of the verdicts in which the engines disagree, without those that
// the table of differences allows.
func compare(t reporter, name string, ours, theirs map[subject]verdict) {
	t.Helper()
	for s, our := range ours {
		if their := theirs[s]; !our.agrees(their) && !deliberate(disagreement{name, s, our, their}) {
			t.Errorf("%s %s:\nthis engine: %s\nGatekeeper:  %s", s.Constraint, s.Object, our, their)
		}
	}
	if len(ours) != len(theirs) {
		t.Errorf("this engine has %d verdicts, Gatekeeper %d", len(ours), len(theirs))
	}
}

// deliberate tells whether the table of differences has a disagreement, and marks
// the entries that have it.
func deliberate(d disagreement) bool {
	found := false
	for _, e := range differences {
		if e.applies(d) {
			e.hits.Add(1)
			found = true
		}
	}
	return found
}

// has tells whether all of some texts have something in them.
func has(texts []string, part string) bool {
	return len(texts) > 0 && !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(s, part) })
}
