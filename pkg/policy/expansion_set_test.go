package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestExpansionTemplatesThatAreRejected(t *testing.T) {
	set := expanding(t, nil, sayKind, []string{
		expandDeployments,
		"apiVersion: expansion.gatekeeper.sh/v1beta1\nkind: ExpansionTemplate\nmetadata: {name: empty, uid: u, generation: 4}\n",
		expansionManifest("forth", "x", "A", "spec", "x", "B", ""), expansionManifest("back", "x", "B", "spec", "x", "A", ""),
	}, testConstraint("c", podsOnly))
	got := map[ConstraintID]string{}
	for _, r := range set.Rejections() {
		got[r.ID] = r.Message
		if r.ID.Name == "empty" && (r.UID != "u" || r.Generation != 4) {
			t.Errorf("%+v", r)
		}
	}
	id := func(name string) ConstraintID {
		return ConstraintID{Engine: EngineGatekeeper, Kind: "ExpansionTemplate", Name: name}
	}
	want := map[ConstraintID]string{
		id("empty"): "ExpansionTemplate empty: spec is missing; it has to be an object with applyTo, templateSource and generatedGVK",
		id("forth"): "ExpansionTemplate forth: it is in a circle: what it makes is expanded, in the end, to x/v1 B again, by back; remove a kind from spec.applyTo of one of them, or delete one",
		id("back"):  "ExpansionTemplate back: it is in a circle: what it makes is expanded, in the end, to x/v1 A again, by forth; remove a kind from spec.applyTo of one of them, or delete one",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rejections (-want +got):\n%s", diff)
	}
	if v := Review(t.Context(), subject(parse(t, deploymentManifest), nil), set.Constraints()); v[0].Outcome != Fail {
		t.Errorf("the good ExpansionTemplate has no effect: %+v", v[0])
	}
}

// Constraints are chosen for the kinds that lead to what they select, and for no others.
func TestForKindWithExpansionTemplates(t *testing.T) {
	set := expanding(t, nil, sayKind, []string{expandDeployments, expandCronJobs, expandJobs, expansionManifest("roles", "x", "Role", "spec", "x", "Binding", "")},
		testConstraint("pods", podsOnly),
		testConstraint("generated", "match: {kinds: [{kinds: [Pod]}], source: Generated}"),
		testConstraint("original", "match: {kinds: [{kinds: [Pod]}], source: Original}"),
		testConstraint("jobs", "match: {kinds: [{apiGroups: [batch], kinds: [Job]}]}"),
		testConstraint("cluster", "match: {scope: Cluster, kinds: [{kinds: [Pod, Binding]}]}"),
		testConstraint("namespaced", "match: {scope: Namespaced, kinds: [{kinds: [Binding]}]}"))
	for kind, want := range map[Kind]string{
		{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Namespaced: true}:                          "original pods",
		{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Namespaced: true}:    "generated pods",
		{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, Namespaced: true}:    "",
		{GroupVersionKind: schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "CronJob"}, Namespaced: true}:      "generated jobs pods",
		{GroupVersionKind: schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}, Namespaced: true}:          "generated jobs pods",
		{GroupVersionKind: schema.GroupVersionKind{Group: "x", Version: "v1", Kind: "Role"}}:                               "cluster namespaced",
		{GroupVersionKind: schema.GroupVersionKind{Group: "x", Version: "v1", Kind: "Role"}, Namespaced: true}:             "namespaced",
		{GroupVersionKind: schema.GroupVersionKind{Group: "batch", Version: "v1beta1", Kind: "CronJob"}, Namespaced: true}: "generated jobs pods", // objects may be of another version than the kind
	} {
		var names []string
		for _, c := range set.ForKind(kind) {
			names = append(names, c.ID.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%v: %s, want %s", kind, got, want)
		}
	}
	grouped := expanding(t, nil, sayKind, []string{expandDeployments, expandCronJobs, expandJobs},
		testConstraint("pods", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}`),
		testConstraint("generated", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}], source: Generated}`),
		testConstraint("original", `match: {kinds: [{apiGroups: [""], kinds: [Pod]}], source: Original}`),
		testConstraint("jobs", "match: {kinds: [{apiGroups: [batch], kinds: [Job]}]}"))
	got := map[string]string{}
	for _, c := range grouped.Constraints() {
		for _, group := range []string{"", "apps", "batch", "x"} {
			if c.SelectsGroup(group) {
				got[c.ID.Name] += fmt.Sprintf("%q ", group)
			}
		}
	}
	want := map[string]string{"pods": `"" "apps" "batch" `, "generated": `"apps" "batch" `, "original": `"" `, "jobs": `"batch" `}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

// The digest of a constraint changes with ExpansionTemplates that make what it selects,
// or what that is made of, and with no others.
func TestDigestWithExpansionTemplates(t *testing.T) {
	constraints := []string{testConstraint("pods", podsOnly), testConstraint("services", "match: {kinds: [{kinds: [Service]}]}"), testConstraint("original", "match: {source: Original}")}
	var previous *Set
	digests := func(expansions ...string) map[string]string {
		previous = expanding(t, previous, sayKind, expansions, constraints...)
		out := map[string]string{"set": previous.Digest()}
		for _, c := range previous.Constraints() {
			out[c.ID.Name] = c.Digest
		}
		return out
	}
	changed := func(before, after map[string]string) string {
		var names []string
		for _, name := range []string{"pods", "services", "original", "set"} {
			if before[name] != after[name] {
				names = append(names, name)
			}
		}
		return strings.Join(names, " ")
	}
	plain := digests()
	unrelated := digests(expandCronJobs)
	if got := changed(plain, unrelated); got != "" {
		t.Errorf("an ExpansionTemplate that makes something else changes %s", got)
	}
	jobs := digests(expandJobs)
	for what, expansions := range map[string][]string{
		"an ExpansionTemplate of what it is made of": {expandJobs, expandCronJobs},
		"another ExpansionTemplate":                  {expandJobs, expandDeployments},
		"another name":                               {strings.Replace(expandJobs, "{name: jobs}", "{name: others}", 1)},
		"another action":                             {expansionManifest("jobs", "batch", "Job", "spec.template", "", "Pod", "warn")},
		"none":                                       nil,
	} {
		if got := changed(jobs, digests(expansions...)); got != "pods set" {
			t.Errorf("%s changes %q, want pods and the set", what, got)
		}
	}
	if got := changed(plain, digests()); got != "" {
		t.Errorf("without ExpansionTemplates again, %s are not as before", got)
	}
	if got := changed(jobs, digests(expandJobs)); got != "" {
		t.Errorf("with the same ExpansionTemplate again, %s are not as before", got)
	}
}

// Constraints that a set shares with the one before it remember what they said, and
// see the same resultants as the others of their set.
func TestConstraintsThatStayUnderOtherExpansionTemplates(t *testing.T) {
	constraints := []string{testConstraint("pods", podsOnly), testConstraint("bindings", "match: {kinds: [{kinds: [Binding]}]}")}
	first := expanding(t, nil, sayKind, []string{expandDeployments, expansionManifest("roles", "x", "Role", "spec", "x", "Binding", "")}, constraints...)
	second := expanding(t, first, sayKind, []string{expandDeployments, expansionManifest("roles", "x", "Role", "spec", "x", "Binding", "warn")}, constraints...)
	rule := func(s *Set, name string) *gatekeeperRule {
		for _, c := range s.Constraints() {
			if c.ID.Name == name {
				return c.rule.(*gatekeeperRule)
			}
		}
		t.Fatalf("no constraint %s", name)
		return nil
	}
	if rule(first, "pods").evaluator != rule(second, "pods").evaluator {
		t.Error("a constraint forgets what it said")
	}
	if rule(second, "pods").expansion.system != second.expansion || rule(second, "bindings").expansion.system != second.expansion {
		t.Error("constraints of a set have different systems")
	}
	third := expanding(t, second, sayKind, []string{expansionManifest("roles", "x", "Role", "spec", "x", "Binding", "warn"), expandDeployments}, constraints...)
	for i, c := range third.Constraints() {
		if c != second.Constraints()[i] {
			t.Errorf("constraint %s is made anew although nothing has changed", c.ID.Name)
		}
	}
}
