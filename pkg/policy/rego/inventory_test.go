package rego

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// TestInventoryReads has random programs read some of what they read in
// data.inventory: they must not tell the object there from what is kept of it.
func TestInventoryReads(t *testing.T) {
	const place = "data.inventory.cluster.v1.Pod.p"
	compiled, told := 0, 0
	for seed := range int64(1500) {
		random := rand.New(rand.NewSource(seed))
		g := &programGenerator{r: random, v1: seed%2 == 0}
		text := "package t\n"
		if !g.v1 {
			text += "import future.keywords.in\nimport future.keywords.every\n"
		}
		parts := strings.Split(strings.Join(g.program(), "\n"), "input.review.object")
		text += parts[0]
		for _, part := range parts[1:] {
			text += []string{"input.review.object", place}[random.Intn(2)] + part
		}
		p, err := Compile(Source{Rego: text, V1: g.v1})
		if err != nil || p.Inventory == nil {
			continue // not all of them are well formed
		}
		compiled++
		object := p.Inventory.Below("cluster").Below("v1").Below("Pod").Below("p")
		projection := paths.NewProjection(object)
		parameters := parametersOf(t)
		for range 30 {
			review := newValue(t, randomReview(random))
			document := randomReview(random)
			say := func(object any) string {
				inventory := NewInventory([]Item{{GroupVersion: "v1", Kind: "Pod", Name: "p", Value: newValue(t, object)}})
				violations, err := p.Eval(t.Context(), review, parameters, inventory)
				first, _, _ := strings.Cut(fmt.Sprint(violations, err), "\n")
				return first
			}
			whole := say(document["object"])
			if whole != say(nil) {
				told++
			}
			if kept := say(projection.Project(document["object"], nil)); kept != whole {
				data, err := json.Marshal(document["object"])
				if err != nil {
					t.Fatal(err)
				}
				t.Fatalf("%s\nreads %v of the inventory, and says %s of it, and %s of\n%s", text, object.Paths(), kept, whole, data)
			}
		}
	}
	if compiled < 200 || told < 500 {
		t.Errorf("only %d programs compiled, and only %d verdicts depended on the inventory", compiled, told)
	}
}

func newValue(t *testing.T, document any) Value {
	t.Helper()
	value, err := NewValue(document)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
