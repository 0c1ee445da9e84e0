package audit

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// constraintState tells what the totals of a constraint are worth and why; the
// caller holds mu.
func (t *tracker) constraintState(c *constraintStatus) (v1alpha1.SummaryState, string) {
	failing, pending := slices.Clone(c.unseen), []string(nil)
	for _, gk := range c.kinds {
		k := t.status(gk)
		if k.err != "" {
			failing = append(failing, gk.String()+": "+k.failure())
		} else if text := t.missing(k); text != "" {
			failing = append(failing, gk.String()+": "+text)
		} else if _, ok := k.listed[c.Digest]; !ok {
			pending = append(pending, gk.String())
		}
	}
	for group, err := range t.policies.failedGroups {
		if c.SelectsGroup(group) {
			failing = append(failing, "kinds of the API group "+group+": "+err.Error())
		}
	}
	if c.NeedsNamespace && t.namespacesErr != "" {
		failing = append(failing, "Namespace: "+t.namespacesErr)
	}
	sort.Strings(failing)
	sort.Strings(pending)
	switch {
	case len(failing) > 0:
		return v1alpha1.SummaryPartial, "not listed or watched: " + joinSome(failing, "; ")
	case len(t.policies.hidden) > 0:
		first := t.policies.hidden[0]
		return v1alpha1.SummaryPartial, fmt.Sprintf("problems that keep objects from being seen: %d, the first: %s: %s; the newest AuditRun has them", len(t.policies.hidden), first.Subject, first.Message)
	case len(pending) > 0:
		return v1alpha1.SummaryNotYetAudited, "being listed: " + joinSome(pending, ", ")
	case !t.behind.IsZero():
		return v1alpha1.SummaryPending, "changes wait to be judged, the first of them since " + t.behind.UTC().Format(time.RFC3339)
	case len(c.kinds) == 0:
		return v1alpha1.SummaryCurrent, "no kind that exists here is selected"
	}
	return v1alpha1.SummaryCurrent, ""
}

// missing says which objects of a kind are not kept, "" if all are; the caller holds mu.
func (t *tracker) missing(k *kindStatus) string {
	var out []string
	if text := k.refusals(); text != "" {
		out = append(out, text)
	}
	if k.full {
		out = append(out, notKept(t.quota))
	}
	return strings.Join(out, "; ")
}

// failure says why the kind cannot be listed or watched, and how old its findings are.
func (k *kindStatus) failure() string {
	if k.asOf.IsZero() {
		return k.err
	}
	return fmt.Sprintf("%s; its findings are kept, as of %s", k.err, k.asOf.UTC().Format(time.RFC3339))
}

// refusals says which objects the index does not take, "" if there are none; the
// caller holds the tracker's mu.
func (k *kindStatus) refusals() string {
	var out []string
	for key, err := range k.refused {
		name, _ := truncate(strings.TrimPrefix(key.Namespace+"/"+key.Name, "/"), maxNameBytes)
		out = append(out, fmt.Sprintf("%q cannot be kept: %s", name, err))
	}
	sort.Strings(out)
	return joinSome(out, "; ")
}

// joinSome joins the first few of a list and tells how many more there are.
func joinSome(list []string, separator string) string {
	const most = 10
	out := ""
	for i, s := range list {
		if i == most {
			return out + separator + "and more"
		}
		if i > 0 {
			out += separator
		}
		out += s
	}
	return out
}
