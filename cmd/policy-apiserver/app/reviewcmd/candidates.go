package reviewcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/review"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

// candidates are the policies of --candidates.
type candidates struct {
	manifests []directory.Manifest
	raw       []runtime.RawExtension
	notes     []string
	problems  []string
}

// readCandidates reads the policies of a file or directory, and the params among its
// objects. What cannot be read is a problem.
func readCandidates(ctx context.Context, path string) (*candidates, error) {
	src, err := directory.New(path, directory.Options{})
	if err != nil {
		return nil, fmt.Errorf("--candidates: %w", err)
	}
	inventory, err := src.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("--candidates: %w", err)
	}
	all, err := src.Manifests()
	if err != nil {
		return nil, fmt.Errorf("--candidates: %w", err)
	}
	c := &candidates{problems: texts(inventory.Problems)}
	params := map[schema.GroupVersionKind]bool{}
	for _, m := range all {
		if kind, ok := m.Object.Object["spec"].(map[string]any); ok && m.Object.GetKind() == "ValidatingAdmissionPolicy" {
			if of, ok := kind["paramKind"].(map[string]any); ok {
				params[schema.FromAPIVersionAndKind(fmt.Sprint(of["apiVersion"]), fmt.Sprint(of["kind"]))] = true
			}
		}
	}
	ignored := 0
	for _, m := range all {
		gvk := m.Object.GroupVersionKind()
		if !review.IsPolicy(gvk.GroupKind()) && !params[gvk] {
			ignored++
			continue
		}
		m.File = placeIn(path, m.File)
		raw, err := json.Marshal(m.Object.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.File, err)
		}
		c.manifests = append(c.manifests, m)
		c.raw = append(c.raw, runtime.RawExtension{Raw: raw})
	}
	if len(c.raw) == 0 {
		return nil, fmt.Errorf("--candidates: there are no policies in %s", path)
	}
	if ignored > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%d objects of %s are no policies and are ignored", ignored, path))
	}
	return c, nil
}

var candidateField = regexp.MustCompile(`^spec\.candidatePolicies\[(\d+)\]\.?(.*)$`)

// explain says which manifests an error is about, with file and line; other errors are as
// they are.
func (c *candidates) explain(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonInvalid || status.Status().Details == nil {
		return err
	}
	var out []error
	for _, cause := range status.Status().Details.Causes {
		match := candidateField.FindStringSubmatch(cause.Field)
		if match == nil {
			return err
		}
		i, convErr := strconv.Atoi(match[1])
		if convErr != nil || i >= len(c.manifests) {
			return err
		}
		message := cause.Message
		if match[2] != "" {
			message = match[2] + ": " + message
		}
		out = append(out, fmt.Errorf("%s:%d: %s", c.manifests[i].File, c.manifests[i].Line, message))
	}
	if len(out) == 0 {
		return err
	}
	return errors.Join(out...)
}

// scope that the flags select.
func (o *options) scope() (*v1alpha1.ReviewScope, error) {
	limit := int32(o.limit)
	scope := &v1alpha1.ReviewScope{Namespaces: o.namespaces, Limit: &limit}
	for _, text := range o.kinds {
		gk := schema.ParseGroupKind(text)
		scope.Kinds = append(scope.Kinds, v1alpha1.ReviewKind{APIGroup: gk.Group, Kind: gk.Kind})
	}
	if o.selector != "" {
		selector, err := metav1.ParseToLabelSelector(o.selector)
		if err != nil {
			return nil, fmt.Errorf("--selector: %w", err)
		}
		scope.LabelSelector = selector
	}
	return scope, nil
}

// runScope has the candidates judge what is in the cluster, and prints their impact.
func (o *options) runScope(ctx context.Context, ask reviewer, c *candidates, stdout, stderr io.Writer) error {
	spec := o.spec()
	scope, err := o.scope()
	if err != nil {
		return err
	}
	spec.Scope, spec.CandidatePolicies, spec.WithInstalled = scope, c.raw, o.withInstalled
	status, err := ask.review(ctx, &spec)
	if err != nil {
		return c.explain(err)
	}
	if status.Impact == nil {
		return errors.New("the answer does not say what is in the cluster; the server is of another version")
	}
	if err := impactOutputs[o.output](stdout, status); err != nil {
		return fmt.Errorf("print the impact: %w", err)
	}
	for _, note := range append(c.notes, status.Notes...) {
		fmt.Fprintln(stderr, "Note:", note)
	}
	for _, problem := range c.problems {
		fmt.Fprintln(stderr, "Problem:", problem)
	}
	failing := failing(status, severities[o.failOn])
	fmt.Fprintf(stderr, "%d objects in %v: %d violations, of which %d fail the review; %d could not be judged; %d entries were not judged\n",
		status.Impact.Objects, status.Duration.Round(1e6), status.Failed, failing, status.Errors+status.Deferred, len(status.Impact.NotJudged))
	switch {
	case len(c.problems) > 0 || !status.Impact.Complete || status.Errors+status.Deferred > 0:
		return errProblems
	case failing > 0:
		return errViolations
	}
	return nil
}

// failing is the number of violations that --fail-on names. All are counted, whether they
// are listed or not.
func failing(status *v1alpha1.ReviewStatus, failOn int) int64 {
	var n int64
	for i := range status.Impact.Constraints {
		c := &status.Impact.Constraints[i]
		most := 1
		for _, action := range c.EnforcementActions {
			most = max(most, severities[action])
		}
		if most >= failOn {
			n += c.Failed
		}
	}
	return n
}

// impactOutputs print an impact, by the name of the format.
var impactOutputs = map[string]func(io.Writer, *v1alpha1.ReviewStatus) error{
	"table": writeImpact,
	"json": func(w io.Writer, status *v1alpha1.ReviewStatus) error {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(status)
	},
}

// writeImpact prints three tables: what each constraint found, where, and the first
// findings; and what was not judged.
func writeImpact(w io.Writer, status *v1alpha1.ReviewStatus) error {
	totals := func(t *v1alpha1.ReviewTotals) string {
		return fmt.Sprintf("%d\t%d\t%d\t%d", t.FailedObjects, t.Failed, t.Errors, t.Deferred)
	}
	const columns = "FAILED OBJECTS\tFAILED\tERRORS\tDEFERRED"
	impact := status.Impact
	var lines []string
	for i := range impact.Constraints {
		c := &impact.Constraints[i]
		lines = append(lines, fmt.Sprintf("%s/%s\t%s\t%d\t%s", c.Constraint.Kind, c.Constraint.Name, strings.Join(c.EnforcementActions, ","), c.Evaluated, totals(&c.ReviewTotals)))
	}
	if err := writeLines(w, "CONSTRAINT\tACTION\tEVALUATED\t"+columns, lines); err != nil {
		return err
	}
	lines = nil
	for i := range impact.Counts {
		c := &impact.Counts[i]
		lines = append(lines, fmt.Sprintf("%s\t%s\t%d\t%s", c.Namespace, schema.GroupKind{Group: c.APIGroup, Kind: c.Kind}, c.Objects, totals(&c.ReviewTotals)))
	}
	if err := writeLines(w, "\nNAMESPACE\tKIND\tOBJECTS\t"+columns, lines); err != nil {
		return err
	}
	lines = nil
	for i := range status.Verdicts {
		v := verdict{ReviewVerdict: status.Verdicts[i]}
		for _, message := range v.messages() {
			lines = append(lines, fmt.Sprintf("%s\t%s\t%s\t%s\t%s", v.Result, v.action(), v.constraint(), v.resource(), strings.Join(strings.Fields(message), " ")))
		}
	}
	if err := writeLines(w, "\nRESULT\tACTION\tCONSTRAINT\tRESOURCE\tMESSAGE", lines); err != nil {
		return err
	}
	lines = nil
	for i := range impact.NotJudged {
		n := &impact.NotJudged[i]
		lines = append(lines, fmt.Sprintf("%s\t%s\t%s\t%s", n.Namespace, schema.GroupKind{Group: n.APIGroup, Kind: n.Kind}, n.Reason, strings.Join(strings.Fields(n.Message), " ")))
	}
	return writeLines(w, "\nNOT JUDGED IN\tKIND\tREASON\tMESSAGE", lines)
}
