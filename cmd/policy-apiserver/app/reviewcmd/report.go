package reviewcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// severities of enforcement actions; others count as dryrun.
var severities = map[string]int{"deny": 3, "warn": 2, "dryrun": 1, "audit": 1}

// verdict is one with the place of its object.
type verdict struct {
	File string `json:"file"`
	Line int    `json:"line"`
	v1alpha1.ReviewVerdict
}

// report is what was found.
type report struct {
	failOn int

	PolicyDigest string    `json:"policyDigest,omitempty"`
	Objects      int       `json:"objects"`
	Verdicts     []verdict `json:"verdicts"`
	Notes        []string  `json:"notes,omitempty"`
	// Problems are what could not be read or judged.
	Problems []string `json:"problems,omitempty"`
	// Unlisted is how many verdicts that are no passes the answers did not list.
	Unlisted int64 `json:"unlisted,omitempty"`
}

// add adds the answer to a review of items.
func (r *report) add(items []item, status *v1alpha1.ReviewStatus) {
	r.PolicyDigest = status.PolicyDigest
	r.Objects += len(items)
	counted := status.Failed + status.Errors + status.Deferred
	for _, v := range status.Verdicts {
		if int(v.Index) >= len(items) {
			continue // of no object that was sent
		}
		it := items[v.Index]
		r.Verdicts = append(r.Verdicts, verdict{File: it.File, Line: it.Line, ReviewVerdict: v})
		if v.Result != v1alpha1.ReviewPass && v.Result != v1alpha1.ReviewNotMatched {
			counted--
		}
	}
	for _, note := range status.Notes {
		if !slices.Contains(r.Notes, note) {
			r.Notes = append(r.Notes, note)
		}
	}
	if counted > 0 {
		r.Unlisted += counted
		r.Problems = append(r.Problems, fmt.Sprintf("%d verdicts that are no passes are not listed; review fewer objects at a time", counted))
	}
}

// severity of a verdict is that of its strongest action.
func (v *verdict) severity() int {
	most := 1
	for _, action := range append(slices.Clone(v.EnforcementActions), v.EnforcementAction) {
		most = max(most, severities[action])
	}
	return most
}

func (r *report) count(is func(*verdict) bool) int {
	n := 0
	for i := range r.Verdicts {
		if is(&r.Verdicts[i]) {
			n++
		}
	}
	return n
}

// failures are the violations that --fail-on names.
func (r *report) failures() int { return r.count(r.fails) }

func (r *report) fails(v *verdict) bool {
	return v.Result == v1alpha1.ReviewFail && v.severity() >= r.failOn
}

// unjudged are the verdicts that say nothing.
func (r *report) unjudged() int { return r.count((*verdict).unjudged) }

func (v *verdict) unjudged() bool {
	return v.Result == v1alpha1.ReviewError || v.Result == v1alpha1.ReviewDeferred
}

func (r *report) summary() string {
	failed := r.count(func(v *verdict) bool { return v.Result == v1alpha1.ReviewFail })
	return fmt.Sprintf("%d objects: %d violations, of which %d fail the review; %d could not be judged", r.Objects, failed, r.failures(), r.unjudged()+len(r.Problems))
}

// resource is the object of a verdict as people write it.
func (v *verdict) resource() string {
	name := v.Resource.Name
	if v.Resource.Namespace != "" {
		name = v.Resource.Namespace + "/" + name
	}
	return v.Resource.Kind + " " + name
}

func (v *verdict) constraint() string { return v.Constraint.Kind + "/" + v.Constraint.Name }

// action is what is done about a violation.
func (v *verdict) action() string {
	if len(v.EnforcementActions) > 0 {
		return strings.Join(v.EnforcementActions, ",")
	}
	return v.EnforcementAction
}

// messages say what is wrong.
func (v *verdict) messages() []string {
	var out []string
	for _, violation := range v.Violations {
		out = append(out, violation.Message)
	}
	for _, more := range []string{v.Message, v.Reason} {
		if more != "" {
			out = append(out, more)
		}
	}
	if v.Truncated {
		out = append(out, "(more was cut)")
	}
	return out
}

// outputs print a report, by the name of the format.
var outputs = map[string]func(io.Writer, *report) error{
	"table": writeTable,
	"json":  writeJSON,
	"sarif": writeSARIF,
	"junit": writeJUnit,
}

func outputNames() []string { return slices.Sorted(maps.Keys(outputs)) }

// writeTable prints what is no pass, a line for each message.
func writeTable(w io.Writer, r *report) error {
	table := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	header := false
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.Result == v1alpha1.ReviewPass {
			continue
		}
		if !header {
			fmt.Fprintln(table, "RESULT\tACTION\tCONSTRAINT\tRESOURCE\tFILE\tMESSAGE")
			header = true
		}
		messages := v.messages()
		if len(messages) == 0 {
			messages = []string{""}
		}
		for _, message := range messages {
			message = strings.Join(strings.Fields(message), " ")
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s:%d\t%s\n", v.Result, v.action(), v.constraint(), v.resource(), v.File, v.Line, message)
		}
	}
	return table.Flush()
}

func writeJSON(w io.Writer, r *report) error {
	out := *r
	if out.Verdicts == nil {
		out.Verdicts = []verdict{}
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(&out)
}

// writeLines prints a table, nothing if it has no lines. An empty line may be in front of
// the header.
func writeLines(w io.Writer, header string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	if rest, ok := strings.CutPrefix(header, "\n"); ok {
		fmt.Fprintln(w)
		header = rest
	}
	table := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, line := range append([]string{header}, lines...) {
		fmt.Fprintln(table, line)
	}
	return table.Flush()
}
