package differential

import (
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
)

// disagreement is a verdict in which the engines differ.
type disagreement struct {
	test string
	subject
	ours, theirs verdict
}

// difference is a way in which the engines differ.
type difference struct {
	name   string
	reason string
	// fault is true if the engines should not differ, and the reason says what to
	// mend.
	fault   bool
	applies func(disagreement) bool
	hits    atomic.Int64
}

var (
	evalError = regexp.MustCompile(`^[^:]+:\d+: eval_[a-z_]+_error: `)
	// impliedError is evalError, or that of a match block, of a resultant.
	impliedError = regexp.MustCompile(`^\[Implied by [^]]+\] ([^:]+:\d+: eval_[a-z_]+_error|unable to match constraints): `)
	celError     = regexp.MustCompile(`(?s)^expression '.*' resulted in error: |^validation failed due to running out of cost budget`)

	celCompilation   = regexp.MustCompile(`^compilation error: |fails to compile: `)
	brokenExpression = regexp.MustCompile(`: (validations|variables|matchCondition)\[\d+\]\.expression:`)
	brokenMessage    = regexp.MustCompile(`: validations\[\d+\]\.messageExpression:`)
)

// anyMatch tells whether one of some texts matches.
func anyMatch(texts []string, pattern *regexp.Regexp) bool {
	return slices.ContainsFunc(texts, pattern.MatchString)
}

// in is a predicate: the case is one of these, and the outcomes are as given. A
// template is either rejected or not.
func in(ours, theirs string, cases ...string) func(disagreement) bool {
	same := func(d disagreement, got, want string) bool {
		if d.Object == "" {
			return (got == rejected) == (want == rejected)
		}
		return got == want
	}
	return func(d disagreement) bool {
		return slices.Contains(cases, d.test) && same(d, d.ours.Outcome, ours) && same(d, d.theirs.Outcome, theirs)
	}
}

// either is a predicate: one of these applies.
func either(predicates ...func(disagreement) bool) func(disagreement) bool {
	return func(d disagreement) bool {
		return slices.ContainsFunc(predicates, func(p func(disagreement) bool) bool { return p(d) })
	}
}

// differences are all differences there may be. One that no case of TestCases
// shows any more fails it.
var differences = []*difference{
	{
		name:   "errors are not violations",
		reason: "Gatekeeper reports an error of evaluation as a violation, with the error as its message; here it is an error of the constraint and the object.",
		applies: func(d disagreement) bool {
			return d.ours.Outcome == failed && len(d.theirs.Violations) == 1 && evalError.MatchString(d.theirs.Violations[0])
		},
	},
	{
		name:   "errors stay with their constraint",
		reason: "Gatekeeper evaluates all constraints of a template in one query, and an error of one becomes the result of all; here each is evaluated by itself.",
		applies: func(d disagreement) bool {
			return (d.ours.Outcome == violated || d.ours.Outcome == none) && len(d.theirs.Violations) == 1 && evalError.MatchString(d.theirs.Violations[0])
		},
	},
	{
		name:   "a msg that is no text is an error of its constraint",
		reason: "Gatekeeper's review of the object fails.",
		applies: func(d disagreement) bool {
			return d.theirs.Outcome == lost && d.ours.Outcome == failed && strings.Contains(d.ours.Message, "msg of a violation is ")
		},
	},
	{
		name:   "results of other constraints are kept",
		reason: "When Gatekeeper's review of an object fails, the results of all constraints for it are lost.",
		applies: func(d disagreement) bool {
			return d.theirs.Outcome == lost && (d.ours.Outcome == violated || d.ours.Outcome == none)
		},
	},
	{
		name:   "a match block that cannot be decided is an error",
		reason: "Gatekeeper reports it as a violation (an autoreject).",
		applies: func(d disagreement) bool {
			return d.ours.Outcome == failed && strings.HasPrefix(d.ours.Message, "match: ") && has(d.theirs.Violations, "unable to match constraints: ")
		},
	},
	{
		name:   "functions that policies may not use",
		reason: "http.send is disabled by Gatekeeper's charts; here the network, files, the environment and the parser are out of reach as well, and so are functions of which a short call takes all memory or never ends.",
		applies: func(d disagreement) bool {
			return d.ours.Outcome == rejected && strings.Contains(d.ours.Message, "may not use this built-in function here")
		},
	},
	{
		name:   "numbers of the object are exact",
		reason: "Gatekeeper decodes the object to float64: a million is printed as 1e+06, and integers of more than 53 bits are rounded.",
		applies: either(
			in(violated, violated, "million of the object", "million of the object as JSON", "million of the object with %d", "large number of the object",
				"large number of the object plus one", "numbers of details"),
			in(violated, none, "large number of the object compared"),
		),
	},
	{
		name:    "a later OPA",
		reason:  "Gatekeeper v3.23.1 has OPA v1.17; since then, YAML is indented in another way, and the verbs of sprintf name another type.",
		applies: in(violated, violated, "object as YAML", "wrong formats"),
	},
	{
		name:    "the Namespace has its type",
		reason:  "Gatekeeper's typed client empties apiVersion and kind of namespaceObject.",
		applies: in(violated, none, "type of the Namespace"),
	},
	{
		name:    "defaults come before validation",
		reason:  "As in the kube-apiserver, which stores what comes out; Gatekeeper's client alone validates first. A null that has a default is replaced by it.",
		applies: in(violated, rejected, "default of what is required", "null"),
	},
	{
		name:    "a spec that is null is absent",
		reason:  "A kube-apiserver does not store it; in a directory it is as good as none.",
		applies: in(violated, rejected, "spec is null"),
	},
	{
		name:    "versions and names that no kube-apiserver serves",
		reason:  "They are only found in directories, where nothing else would be meant by them.",
		applies: in(violated, rejected, "unknown version", "v1", "name that is no DNS name"),
	},
	{
		name:    "rules of the schema are checked",
		reason:  "As by the kube-apiserver, which does not store constraints that break x-kubernetes-validations; Gatekeeper's client alone does not evaluate these.",
		applies: in(rejected, violated, "rules of the schema"),
	},
	{
		name:    "two programs of Rego",
		reason:  "Gatekeeper evaluates the first and says nothing of the other; here the template is rejected.",
		applies: in(rejected, violated, "two programs of Rego"),
	},
	{
		name:   "references to libraries",
		reason: "Gatekeeper moves libraries to data.libs and misses references in the heads of rules and to all of data.lib; here libraries stay where they say they are.",
		applies: either(
			in(violated, none, "library without import", "all of a library", "libraries itself"),
			in(violated, violated, "all libraries"),
		),
	},
	{
		name:    "details that are null are kept",
		reason:  "Gatekeeper's results do not tell them from none.",
		applies: in(violated, violated, "details are null"),
	},
	{
		name:    "an empty action is the default",
		reason:  `Gatekeeper reports the action "", which no client can make anything of.`,
		applies: in(violated, violated, `action ""`),
	},
	{
		name:   "a result has one action",
		reason: "It is the strongest of those of its violations, where ExpansionTemplates have others for what they imply; each violation of Gatekeeper has its own.",
		applies: func(d disagreement) bool {
			return d.theirs.Action == manyActions && d.ours.Outcome == violated && d.ours.Message == "" && slices.Equal(d.ours.Violations, d.theirs.Violations)
		},
	},
	{
		name:   "errors of resultants are not violations",
		reason: "Gatekeeper reports an error of evaluation, or of the match block, as a violation that is implied; here it is an error that is implied, beside the violations.",
		applies: func(d disagreement) bool {
			found := slices.DeleteFunc(slices.Clone(d.theirs.Violations), impliedError.MatchString)
			return strings.HasPrefix(d.ours.Message, "[Implied by ") && (d.ours.Outcome == failed || d.ours.Outcome == violated) &&
				len(found) < len(d.theirs.Violations) && slices.Equal(found, d.ours.Violations)
		},
	},
	{
		name:    "errors of resultants are not lost",
		reason:  "Gatekeeper's audit logs that a review of a resultant fails, and reports nothing.",
		applies: either(in(violated, violated, "msg of a resultant that is no text"), in(failed, none, "msg of a resultant that is no text")),
	},
	{
		name:   "resultants that cannot be made are an error",
		reason: "When Gatekeeper cannot make one of an object's resultants, all results of the object are lost; here constraints that might have applied to it have an error.",
		applies: func(d disagreement) bool {
			return d.theirs.Outcome == lost && d.ours.Outcome == failed && strings.HasPrefix(d.theirs.Message, "expand: ") && strings.HasPrefix(d.ours.Message, "[Implied by ")
		},
	},
	{
		name:    "metadata that is null is absent",
		reason:  "Gatekeeper leaves it, and the resultant has neither name nor namespace; a kube-apiserver does not store it.",
		applies: in(violated, violated, "resultants without metadata"),
	},
	{
		name:   "ExpansionTemplates with mistakes",
		reason: "Gatekeeper takes fields that it does not know, entries that apply to nothing, and sources that no object has, which costs all results of an object; here the template is rejected, because a broken policy must be visible.",
		applies: func(d disagreement) bool {
			ours, theirs := none, none
			if d.Object != "" && len(d.theirs.Violations) > 0 {
				theirs = violated
			} else if d.Object == "" {
				ours = rejected
			}
			return in(ours, theirs, "ExpansionTemplate: half a kind of resultants", "ExpansionTemplate: an unknown field", "ExpansionTemplate: an unknown field with a name that matters",
				"ExpansionTemplate: a source that is no path", "ExpansionTemplate: a source in a list", "ExpansionTemplate: all kinds", "ExpansionTemplate: kinds with an asterisk",
				"ExpansionTemplate: no versions", "ExpansionTemplate: groups in versions")(d) && (theirs == none || has(d.theirs.Violations, "[Implied by widgets] "))
		},
	},
	{
		name:    "chains that Gatekeeper gives up on",
		reason:  "Gatekeeper takes them, and all results of objects at their beginning are lost; here the first template is rejected.",
		applies: in(rejected, none, "ExpansionTemplate: a chain of 30"),
	},
	{
		name:   "errors of CEL are not violations",
		reason: "If failurePolicy is Fail, Gatekeeper reports one violation for each validation that cannot be evaluated; here the constraint has an error, beside the violations of other validations.",
		applies: func(d disagreement) bool {
			found := slices.DeleteFunc(slices.Clone(d.theirs.Violations), celError.MatchString)
			return strings.HasPrefix(d.test, "CEL: ") && d.ours.Message != "" && (d.ours.Outcome == failed || d.ours.Outcome == violated) &&
				len(found) < len(d.theirs.Violations) && slices.Equal(found, d.ours.Violations)
		},
	},
	{
		name:    "violations of CEL are a set",
		reason:  "Gatekeeper reports a message as often as validations give it; here violations are a set, as those of Rego are.",
		applies: in(violated, violated, "CEL: the same message twice"),
	},
	{
		name:   "expressions that do not compile",
		reason: "Gatekeeper takes the template and reports them as violations of each object, or not at all if failurePolicy is Ignore or nothing uses the variable; here the template is rejected, with the place, because a broken policy must be visible.",
		applies: func(d disagreement) bool {
			return d.ours.Outcome == rejected && brokenExpression.MatchString(d.ours.Message) &&
				(d.Object == "" && d.theirs.Outcome == none || anyMatch(d.theirs.Violations, celCompilation) ||
					in(rejected, none, "CEL: failurePolicy Ignore and a compile error")(d) || in(rejected, violated, "CEL: variable that does not compile")(d))
		},
	},
	{
		name:   "messageExpressions that do not compile or are no text",
		reason: "Gatekeeper takes the template and says the message, or the expression, instead; here the template is rejected, with the place, because a broken policy must be visible.",
		applies: func(d disagreement) bool {
			return d.ours.Outcome == rejected && brokenMessage.MatchString(d.ours.Message) && d.theirs.Outcome != rejected &&
				(d.Object == "" || has(d.theirs.Violations, "static") || has(d.theirs.Violations, "failed expression: "))
		},
	},
	{
		name:    "CEL that can find nothing",
		reason:  "Gatekeeper takes a template without validations; here it is rejected, as a kube-apiserver rejects such a ValidatingAdmissionPolicy, because it would look clean.",
		applies: in(rejected, none, "CEL: no validations", "CEL: nothing"),
	},
	{
		name:    "two variables of one name",
		reason:  "Gatekeeper evaluates the last and says nothing of the other; here the template is rejected.",
		applies: in(rejected, violated, "CEL: variable twice", "CEL: variables without names"),
	},
	{
		name:    "data.inventory is not loaded yet",
		reason:  "Results are deferred, and say so.",
		applies: func(d disagreement) bool { return d.ours.Outcome == deferred },
	},
}
