package cel

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// Fields of random documents and programs. They are few, so that programs meet them.
var fieldsOfDocuments = []string{"a", "b", "c"}

// randomValue returns a value with the types of JSON.
func randomValue(t *rapid.T, depth int) any {
	scalars := []any{nil, true, false, "", "a", "b", int64(0), int64(1), 1.5}
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	switch {
	case depth == 0 || kind == 0:
		return rapid.SampledFrom(scalars).Draw(t, "scalar")
	case kind == 1:
		out := []any{}
		for range rapid.IntRange(0, 2).Draw(t, "length") {
			out = append(out, randomValue(t, depth-1))
		}
		return out
	default:
		return randomFields(t, depth)
	}
}

func randomFields(t *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	for _, name := range fieldsOfDocuments {
		if rapid.IntRange(0, 3).Draw(t, "has "+name) > 0 {
			out[name] = randomValue(t, depth-1)
		}
	}
	return out
}

// change returns a copy of a value that differs in one place, most often.
func change(t *rapid.T, v any, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			out[name] = value
		}
		name := rapid.SampledFrom(fieldsOfDocuments).Draw(t, "changed field")
		switch value, ok := out[name]; {
		case !ok || rapid.IntRange(0, 3).Draw(t, "replace") == 0:
			out[name] = randomValue(t, depth)
		case rapid.IntRange(0, 4).Draw(t, "remove") == 0:
			delete(out, name)
		default:
			out[name] = change(t, value, depth-1)
		}
		return out
	case []any:
		if len(v) == 0 {
			return []any{randomValue(t, 1)}
		}
		out := append([]any{}, v...)
		i := rapid.IntRange(0, len(v)-1).Draw(t, "changed element")
		out[i] = change(t, out[i], depth-1)
		return out
	}
	return randomValue(t, 1)
}

// expressions makes random expressions of CEL. Most of them fail on most documents: what
// an error says counts too.
type expressions struct {
	t *rapid.T
	// names that may be used, besides object.
	names []string
	bound int
}

func (x *expressions) pick(of ...string) string { return rapid.SampledFrom(of).Draw(x.t, "part") }

// path selects fields of an object, in all ways that there are.
func (x *expressions) path(depth int) string {
	out := x.pick(append([]string{"object.spec", "object.spec", "object.spec", "object['spec']", ".object.spec", "object.spec.b", "variables.v", "variables['w']", "object"}, x.names...)...)
	for range rapid.IntRange(0, 3).Draw(x.t, "steps") {
		f := rapid.SampledFrom(fieldsOfDocuments).Draw(x.t, "field")
		switch rapid.IntRange(0, 6).Draw(x.t, "step") {
		case 0:
			out += "['" + f + "']"
		case 1:
			out += ".?" + f + ".orValue(" + x.literal() + ")"
		case 2:
			out += "[?'" + f + "'].orValue({})"
		case 3:
			if depth > 0 {
				out += "[" + x.value(depth-1) + "]"
			}
		case 4:
			out = "dyn(" + out + ")." + f
		default:
			out += "." + f
		}
	}
	return out
}

func (x *expressions) literal() string {
	return x.pick("null", "true", "''", "'a'", "'b'", "0", "1", "1.5", "[]", "{}", "{'a': 1}", "['a']")
}

// value returns an expression of any type.
func (x *expressions) value(depth int) string {
	if depth == 0 {
		return x.path(0)
	}
	switch rapid.IntRange(0, 9).Draw(x.t, "value") {
	case 0:
		return x.literal()
	case 1:
		return fmt.Sprintf("(%s ? dyn(%s) : dyn(%s))", x.truth(depth-1), x.value(depth-1), x.value(depth-1))
	case 2:
		return fmt.Sprintf("dyn(size(%s))", x.value(depth-1))
	case 3:
		return fmt.Sprintf("dyn(string(%s))", x.value(depth-1))
	case 4:
		return x.over(depth, "map", x.value)
	case 5:
		return x.over(depth, "filter", x.truth)
	case 6:
		return fmt.Sprintf("dyn([%s, %s])", x.value(depth-1), x.value(depth-1))
	case 7:
		return fmt.Sprintf("dyn({'a': %s})", x.value(depth-1))
	default:
		return x.path(depth - 1)
	}
}

// over applies a macro to a list or the fields of an object. Its variable may hide another.
func (x *expressions) over(depth int, macro string, body func(int) string) string {
	list := x.value(depth - 1)
	x.bound++
	name := x.pick(fmt.Sprint("x", x.bound), fmt.Sprint("x", x.bound), "object")
	before := x.names
	x.names = append(append([]string{}, before...), name, name)
	out := fmt.Sprintf("dyn(%s.%s(%s, %s))", list, macro, name, body(depth-1))
	x.names = before
	return out
}

// truth returns an expression that is true or false, or of a type that is not known.
func (x *expressions) truth(depth int) string {
	if depth == 0 {
		return x.pick("has(object.spec.a)", "has(object.spec.b.c)", "object.spec.a == null", "null != object.spec.b", "object.spec.c == 'a'")
	}
	switch rapid.IntRange(0, 9).Draw(x.t, "truth") {
	case 0:
		return fmt.Sprintf("has(%s.%s)", x.path(depth-1), x.pick(fieldsOfDocuments...))
	case 1:
		return fmt.Sprintf("%s %s null", x.value(depth-1), x.pick("==", "!="))
	case 2:
		return fmt.Sprintf("%s == dyn(%s)", x.literal(), x.value(depth-1))
	case 3:
		return fmt.Sprintf("(%s %s %s)", x.truth(depth-1), x.pick("&&", "||"), x.truth(depth-1))
	case 4:
		return "!" + x.truth(depth-1)
	case 5:
		return fmt.Sprintf("dyn(%s) in dyn(%s)", x.value(depth-1), x.value(depth-1))
	case 6:
		return x.over(depth, x.pick("all", "exists", "exists_one"), x.truth)
	case 7:
		return fmt.Sprintf("type(%s) == %s", x.value(depth-1), x.pick("string", "int", "map", "list", "null_type"))
	case 8:
		return fmt.Sprintf("object.spec.?%s.%s", x.pick(fieldsOfDocuments...), x.pick("hasValue()", "optMap(v, v == 'a').orValue(false)"))
	default:
		return fmt.Sprintf("%s == %s", x.value(depth-1), x.value(depth-1))
	}
}

// TestWhatIsNotReadMakesNoDifference changes random documents in one place. Where that is
// not in what random programs read, they say the same of both, errors included.
func TestWhatIsNotReadMakesNoDifference(t *testing.T) {
	alike, compiled := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		x := &expressions{t: t}
		src := Source{
			Variables: []NamedExpression{
				{Name: "v", Expression: x.pick("object.spec.b", "object.spec.a", "object.spec.a", "object['spec'].b.c", "object", "object.?spec.b.orValue({})", "[object.spec]")},
			},
			Native: rapid.Bool().Draw(t, "native"),
		}
		src.Variables = append(src.Variables, NamedExpression{Name: "w", Expression: x.pick("variables.v", "variables.v.b", "object.spec.a == null", "object['spec'].c", "variables")})
		if rapid.IntRange(0, 3).Draw(t, "condition") == 0 {
			src.MatchConditions = []NamedExpression{{Name: "condition", Expression: "dyn(" + x.truth(2) + ") == true"}}
		}
		src.Validations = []Validation{{Expression: "dyn(" + x.truth(3) + ") == true", Message: "no", MessageExpression: x.pick("", "string("+x.value(1)+")")}}
		program, err := Compile(src)
		if err != nil {
			return
		}
		compiled++
		spec := randomFields(t, 3)
		first := randomDocument(spec)
		projection := paths.NewProjection(program.Object)
		key := keyOf(projection, first)
		for range 20 {
			second := randomDocument(change(t, spec, 3))
			if keyOf(projection, second) != key {
				continue
			}
			alike++
			if diff := cmp.Diff(outcomeOf(t, program, first), outcomeOf(t, program, second)); diff != "" {
				t.Fatalf("%+v\nreads %v and tells apart\n%v\n%v\n%s", src, program.Object.Paths(), first.Object, second.Object, diff)
			}
		}
	})
	t.Logf("%d programs compiled, %d pairs of documents looked alike", compiled, alike)
	if compiled < 20 || alike < 20 {
		t.Errorf("%d programs and %d pairs say little", compiled, alike)
	}
}

func randomDocument(spec any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": "ns"}, "spec": spec,
	}}
}

func keyOf(p *paths.Projection, obj *unstructured.Unstructured) string {
	key := &paths.Key{}
	key.Append(p, obj.Object)
	return fmt.Sprintf("%s %q", key.Bytes, key.Texts)
}

func outcomeOf(t *rapid.T, p *Program, obj *unstructured.Unstructured) []string {
	result, err := p.Eval(context.Background(), Input{Object: obj})
	if err != nil {
		t.Fatal(err)
	}
	out := []string{fmt.Sprint(result.Matched)}
	for _, v := range result.Violations {
		out = append(out, v.Message)
	}
	for _, err := range result.Errors {
		out = append(out, err.Error())
	}
	return out
}
