package differential

import (
	"context"
	"regexp"
	"slices"
	"testing"

	"policy.example.io/policy-apiserver/test/differential/corpus"
	"policy.example.io/policy-apiserver/test/differential/engine"
	"policy.example.io/policy-apiserver/test/differential/peer"
)

func allCases() []testCase {
	return slices.Concat(templateCases(), constraintCases(), regoCases(), libraryCases(), inventoryCases(), valueCases(), reviewCases(), matchCases(), enforcementCases(), celCases(), celMessageCases(), expansionCases(), celExpansionCases(), expansionTemplateCases())
}

// TestCases asks Gatekeeper, as it is released, and this engine.
func TestCases(t *testing.T) {
	ran := 0
	seen := map[string]bool{}
	for _, c := range allCases() {
		if seen[c.name] {
			t.Errorf("there are two cases %q", c.name)
		}
		seen[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			ran++
			q := c.question(t)
			compare(t, c.name, q.ours(t.Context(), t), q.theirs(t.Context(), t, released.ask))
		})
	}
	if ran < len(seen) {
		return // -run chose some cases
	}
	for _, d := range differences {
		if d.hits.Load() == 0 {
			t.Errorf("the difference %q does not occur any more: remove it from the table", d.name)
		} else if d.fault {
			t.Logf("to mend: %s: %s", d.name, d.reason)
		}
	}
}

// TestVersions asks Gatekeeper with the versions of Kubernetes and OPA that the
// benchmark has, on what needs no CEL, so that the benchmark compares with the
// engine that is released.
func TestVersions(t *testing.T) {
	for _, c := range slices.Concat(regoCases(), libraryCases(), inventoryCases(), valueCases(), reviewCases(), matchCases(), enforcementCases(), expansionCases(), expansionTemplateCases()) {
		t.Run(c.name, func(t *testing.T) {
			q := c.question(t)
			old, new := q.theirs(t.Context(), t, released.ask), q.theirs(t.Context(), t, inProcess)
			for s, v := range old {
				if !v.agrees(new[s]) && !laterOPA(disagreement{c.name, s, v, new[s]}) {
					t.Errorf("%s %s:\nreleased: %s\nhere:     %s", s.Constraint, s.Object, v, new[s])
				}
			}
		})
	}
}

// laterOPA tells whether a case shows that the versions of OPA differ. Errors are
// worded in another way.
func laterOPA(d disagreement) bool {
	return anyMatch(d.ours.Violations, conflictError) && anyMatch(d.theirs.Violations, conflictError) || slices.ContainsFunc(differences, func(e *difference) bool { return e.name == "a later OPA" && e.applies(d) })
}

var conflictError = regexp.MustCompile(`: eval_conflict_error: `)

func inProcess(ctx context.Context, q *peer.Question) (*peer.Answer, error) {
	return peer.Evaluate(ctx, q)
}

// TestCorpusAgrees asks both engines about a part of the corpus.
func TestCorpusAgrees(t *testing.T) {
	policies, err := corpus.Default()
	if err != nil {
		t.Fatal(err)
	}
	referential, err := corpus.Referential()
	if err != nil {
		t.Fatal(err)
	}
	for name, makeObjects := range map[string]func(uint64, int) (*corpus.Objects, error){"varied": corpus.Varied, "cluster": corpus.Cluster} {
		t.Run(name, func(t *testing.T) {
			objects, err := makeObjects(7, 200)
			if err != nil {
				t.Fatal(err)
			}
			q := &question{
				templates:   slices.Concat(policies.Templates, referential.Templates),
				constraints: slices.Concat(policies.Constraints, referential.Constraints),
				inventory:   objects.Items,
			}
			for _, obj := range objects.Items {
				name := obj.GetKind() + " " + obj.GetNamespace() + "/" + obj.GetName() + "@" + obj.GetResourceVersion()
				q.objects = append(q.objects, object{name, obj, objects.Namespace(obj)})
			}
			compare(t, name, q.ours(t.Context(), t), q.theirs(t.Context(), t, inProcess))
		})
	}
}

// TestCorpus checks that the policies of the benchmark tell its objects apart.
func TestCorpus(t *testing.T) {
	policies, err := corpus.Default()
	if err != nil {
		t.Fatal(err)
	}
	if len(policies.Templates) != 15 || len(policies.Constraints) != 25 {
		t.Errorf("%d templates and %d constraints, want 15 and 25", len(policies.Templates), len(policies.Constraints))
	}
	objects, err := corpus.Varied(1, 2000)
	if err != nil {
		t.Fatal(err)
	}
	set := engine.Compile(t.Context(), policies.Templates, policies.Constraints)
	if rejections := set.Rejected(); len(rejections) > 0 {
		t.Fatalf("rejected: %v", rejections)
	}
	outcomes := map[string]map[string]int{}
	for _, obj := range objects.Items {
		for _, v := range set.Review(t.Context(), obj, objects.Namespace(obj)) {
			id := v.Constraint.ID.Kind + "/" + v.Constraint.ID.Name
			if outcomes[id] == nil {
				outcomes[id] = map[string]int{}
			}
			switch v.Outcome {
			case engine.Pass:
				outcomes[id]["pass"]++
			case engine.Fail:
				outcomes[id]["fail"]++
			case engine.Error:
				t.Errorf("%s: %s", id, v.Message)
			}
		}
	}
	for _, c := range policies.Constraints {
		if o := outcomes[constraintID(c)]; o["pass"] == 0 || o["fail"] == 0 {
			t.Errorf("%s: %v, want some that pass and some that fail", constraintID(c), o)
		}
	}
}
