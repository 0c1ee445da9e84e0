package rego

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// fieldNames of random documents and programs are few, so that programs find what they
// ask for, and parts are alike.
var fieldNames = []string{"a", "b", "x", "y", "list"}

func randomValue(r *rand.Rand, depth int) any {
	k := r.Intn(10)
	if depth == 0 || k < 2 {
		return []any{nil, true, false, "a", "b", "x", "y", int64(0), int64(1), int64(2), "a"}[r.Intn(11)]
	}
	if k < 4 {
		return randomList(r, depth)
	}
	out := map[string]any{}
	n := r.Intn(6)
	var prev any
	for i := 0; i < n; i++ {
		v := randomValue(r, depth-1)
		if prev != nil && r.Intn(3) == 0 {
			v = tweak(r, prev)
		}
		prev = v
		out[fieldNames[r.Intn(len(fieldNames))]] = v
	}
	if r.Intn(3) == 0 {
		out["list"] = randomList(r, depth-1)
	}
	return out
}

func randomList(r *rand.Rand, depth int) any {
	out := []any{}
	n := r.Intn(4)
	for i := 0; i < n; i++ {
		if i > 0 && r.Intn(2) == 0 {
			out = append(out, tweak(r, out[i-1]))
			continue
		}
		if depth > 0 {
			out = append(out, randomValue(r, depth-1))
		} else {
			out = append(out, randomValue(r, 0))
		}
	}
	return out
}

// tweak copies a value with one difference.
func tweak(r *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = e
		}
		k := fieldNames[r.Intn(len(fieldNames))]
		if e, ok := out[k]; ok && r.Intn(2) == 0 {
			out[k] = tweak(r, e)
		} else {
			out[k] = randomValue(r, 1)
		}
		return out
	case []any:
		out := append([]any{}, v...)
		if len(out) > 0 {
			i := r.Intn(len(out))
			out[i] = tweak(r, out[i])
		}
		return out
	}
	return randomValue(r, 0)
}

func anyReview(r *rand.Rand) any { return randomReview(r) }

func randomReview(r *rand.Rand) map[string]any {
	rv := map[string]any{"kind": map[string]any{"kind": []any{"Pod", "Job", "a"}[r.Intn(3)]}, "object": map[string]any{}}
	o := rv["object"].(map[string]any)
	var last any
	for _, w := range fieldNames {
		switch r.Intn(5) {
		case 0:
		case 1:
			if last != nil {
				o[w] = tweak(r, last)
				break
			}
			fallthrough
		default:
			o[w] = randomValue(r, 3)
		}
		if o[w] != nil {
			last = o[w]
		}
	}
	if r.Intn(2) == 0 {
		o["list"] = randomList(r, 3)
	}
	return rv
}

// shrink makes a document smaller for as long as it fails.
func shrink(doc any, fails func(any) bool) any {
	for {
		progressed := false
		for _, cand := range smaller(doc) {
			if fails(cand) {
				doc, progressed = cand, true
				break
			}
		}
		if !progressed {
			return doc
		}
	}
}

func smaller(v any) []any {
	var out []any
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			c := map[string]any{}
			for k2, e := range v {
				if k2 != k {
					c[k2] = e
				}
			}
			out = append(out, c)
		}
		for k := range v {
			for _, s := range smaller(v[k]) {
				c := map[string]any{}
				for k2, e := range v {
					c[k2] = e
				}
				c[k] = s
				out = append(out, c)
			}
		}
	case []any:
		for i := range v {
			out = append(out, append(append([]any{}, v[:i]...), v[i+1:]...))
		}
		for i := range v {
			for _, s := range smaller(v[i]) {
				c := append([]any{}, v...)
				c[i] = s
				out = append(out, c)
			}
		}
	default:
		if v != nil && v != true {
			out = append(out, true)
		}
	}
	return out
}

// parametersOf random programs.
func parametersOf(t *testing.T) Value {
	value, err := NewValue(map[string]any{
		"on": true, "x": "x", "p": "b/y", "j": `{"k":"b","o":{"x":"a","y":"b"}}`,
		"labels": []any{"a", "b"}, "o": map[string]any{"b": int64(1), "y": "a"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// say returns what a program says of a document, and its error up to the end of the line.
func say(t *testing.T, p *Program, document any, parameters Value) ([]Violation, string) {
	value, err := NewValue(document)
	if err != nil {
		t.Fatal(err)
	}
	violations, err := p.Eval(t.Context(), value, parameters, nil)
	if err == nil {
		return violations, ""
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return nil, first
}

// projectionFault returns a document of which a program does not say what it says of
// the projection, or of a document that looks the same; nil if there is none among n
// random ones.
func projectionFault(t *testing.T, p *Program, review func(*rand.Rand) any, seed int64, n int) any {
	parameters := parametersOf(t)
	projection := paths.NewProjection(p.Reads)
	// asRemembered tells whether what is said of a document is what is said of one that
	// looks the same, with the texts of the document.
	asRemembered := func(document any, remembered []Violation) bool {
		key := &paths.Key{}
		key.Append(projection, document)
		shown := make([]Violation, len(remembered))
		for i, v := range remembered {
			shown[i] = Violation{p.Show(v.Message, key.Texts), v.Details}
		}
		said, err := say(t, p, document, parameters)
		return fmt.Sprint(distinct(shown)) == fmt.Sprint(said) && err == ""
	}
	fails := func(document any) bool {
		review, ok := document.(map[string]any)
		if !ok || review["object"] == nil {
			return false
		}
		said, err := say(t, p, document, parameters)
		ofProjection, errOfProjection := say(t, p, projection.Project(document, nil), parameters)
		if fmt.Sprint(said) != fmt.Sprint(ofProjection) || err != errOfProjection {
			return true
		}
		remembered, err := say(t, p, projection.Project(document, p.Placeholder), parameters)
		if err != "" {
			return false // it is not remembered
		}
		// The same for each document, so that it can be shrunk.
		random := rand.New(rand.NewSource(seed))
		lookAlike := projection.Project(document, func(int) string { return fieldNames[random.Intn(len(fieldNames))] })
		return !asRemembered(document, remembered) || !asRemembered(lookAlike, remembered)
	}
	random := rand.New(rand.NewSource(seed))
	for range n {
		if document := review(random); fails(document) {
			return shrink(document, fails)
		}
	}
	return nil
}

func checkProjection(t *testing.T, p *Program, review func(*rand.Rand) any, seed int64, n int) {
	t.Helper()
	if fault := projectionFault(t, p, review, seed, n); fault != nil {
		data, err := json.Marshal(fault)
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("reads %v, and says something else of what it reads, or of what looks the same, of %s", p.Reads.Paths(), data)
	}
}

// TestProgramsOfProjections has programs that are hard to follow, one after another in
// a file: a line with === and a name, which has v1 in it for Rego v1; the module; and
// libraries after lines with --- lib.
func TestProgramsOfProjections(t *testing.T) {
	data, err := os.ReadFile("testdata/programs.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range strings.Split("\n"+string(data), "\n=== ")[1:] {
		name, text, _ := strings.Cut(program, "\n")
		t.Run(name, func(t *testing.T) {
			modules := strings.Split(text, "\n--- lib\n")
			p, err := Compile(Source{Rego: "package t\n" + modules[0], Libs: modules[1:], V1: strings.Contains(name, "v1")})
			if err != nil {
				t.Fatal(err)
			}
			checkProjection(t, p, anyReview, 1, 200)
			checkProjection(t, p, textReview, 1, 100)
		})
	}
}

// FuzzProgramsOfProjections makes programs from seeds.
func FuzzProgramsOfProjections(f *testing.F) {
	for seed := range int64(1500) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		g := &programGenerator{r: rand.New(rand.NewSource(seed)), v1: seed%2 == 0}
		text := "package t\n"
		if !g.v1 {
			text += "import future.keywords.in\nimport future.keywords.every\n"
		}
		text += strings.Join(g.program(), "\n")
		p, err := Compile(Source{Rego: text, V1: g.v1})
		if err != nil {
			return // not all of them are well formed
		}
		if checkProjection(t, p, anyReview, seed, 30); t.Failed() {
			t.Log(text)
		}
	})
}
