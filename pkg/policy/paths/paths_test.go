package paths

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func tree(build func(t *Tree)) *Tree {
	t := &Tree{}
	build(t)
	return t
}

func pod() map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": "a", "labels": map[string]any{"app": "x", "team": "y"}},
		"spec": map[string]any{
			"hostPID": true,
			"containers": []any{
				map[string]any{"name": "c", "image": "i", "ports": []any{int64(1)}},
				map[string]any{"name": "d", "securityContext": map[string]any{"privileged": false}},
				"odd",
			},
		},
	}
}

func TestProject(t *testing.T) {
	for name, test := range map[string]struct {
		tree *Tree
		want any
	}{
		"nothing": {nil, map[string]any{}},
		"whole":   {tree(func(t *Tree) { t.ReadAll() }), pod()},
		"fields": {
			tree(func(t *Tree) { t.Field("spec").Field("hostPID"); t.Field("spec").Field("absent").Field("x") }),
			map[string]any{"spec": map[string]any{"hostPID": true}},
		},
		"type of an array": {
			tree(func(t *Tree) { t.Field("spec").Field("containers") }),
			map[string]any{"spec": map[string]any{"containers": []any{}}},
		},
		"elements": {
			tree(func(t *Tree) {
				c := t.Field("spec").Field("containers").Each()
				c.Field("image")
				c.Field("securityContext").ReadAll()
			}),
			map[string]any{"spec": map[string]any{"containers": []any{
				map[string]any{"image": "i"},
				map[string]any{"securityContext": map[string]any{"privileged": false}},
				"odd",
			}}},
		},
		"all fields, and more of one": {
			tree(func(t *Tree) { t.Each(); t.Field("metadata").Field("labels").Each() }),
			map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "x", "team": "y"}}, "spec": map[string]any{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			document := pod()
			if diff := cmp.Diff(test.want, NewProjection(test.tree).Project(document, nil)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(pod(), document); diff != "" {
				t.Errorf("the document was modified: %s", diff)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	read := tree(func(t *Tree) {
		t.Field("a").Field("b")
		t.Field("c").Each().Field("d").ReadText()
		t.Field("e").Each().Show()
		t.Field("f").ReadAll()
	})
	want := []string{".a.b", ".c[].d=", ".e[]~", ".f*"}
	if diff := cmp.Diff(want, read.Paths()); diff != "" {
		t.Error(diff)
	}
	shown := tree(func(t *Tree) { t.Field("a").Show() })
	below := shown.Field("a").Field("b")
	if !below.Whole() || below.ReadText() {
		t.Error("what is below a value that is shown is not read as a whole")
	}
	shown.Add(tree(func(t *Tree) { t.Field("a").Field("b").ReadText() }))
	if diff := cmp.Diff([]string{".a~"}, shown.Paths()); diff != "" {
		t.Error(diff)
	}
}

func TestReads(t *testing.T) {
	read := tree(func(t *Tree) {
		t.Field("a").Field("b")
		t.Field("c").Each().Field("d")
		t.Field("e").ReadAll()
	})
	for _, test := range []struct {
		path []string
		want bool
	}{
		{nil, true},
		{[]string{"a"}, true},
		{[]string{"a", "b"}, true},
		{[]string{"a", "x"}, false},
		{[]string{"c", "any", "d"}, true},
		{[]string{"c", "any", "x"}, false},
		{[]string{"e", "x", "y"}, true},
		{[]string{"x"}, false},
	} {
		if got := read.Reads(test.path...); got != test.want {
			t.Errorf("%v: %v", test.path, got)
		}
	}
}

var names = rapid.SampledFrom([]string{"a", "b", "c", ""})

// documents are small, so that two of them are often alike.
func documents() *rapid.Generator[any] {
	scalars := rapid.SampledFrom([]any{nil, true, false, "", "a", "b", int64(0), int64(1), 1.5})
	generator := rapid.Custom(func(t *rapid.T) any { return scalars.Draw(t, "scalar") })
	for range 3 {
		inner := generator
		generator = rapid.Custom(func(t *rapid.T) any {
			switch rapid.IntRange(0, 3).Draw(t, "type") {
			case 0:
				return scalars.Draw(t, "scalar")
			case 1:
				return rapid.SliceOfN(inner, 0, 2).Draw(t, "array")
			default:
				return rapid.MapOfN(names, inner, 0, 3).Draw(t, "object")
			}
		})
	}
	return generator
}

func trees() *rapid.Generator[*Tree] {
	return rapid.Custom(func(t *rapid.T) *Tree {
		root := &Tree{}
		for i := range rapid.IntRange(0, 5).Draw(t, "paths") {
			node := root
			for j := range rapid.IntRange(0, 3).Draw(t, "length") {
				if name := rapid.SampledFrom([]string{"a", "b", "c", "*"}).Draw(t, fmt.Sprint("step", i, j)); name == "*" {
					node = node.Each()
				} else {
					node = node.Field(name)
				}
			}
			switch rapid.IntRange(0, 5).Draw(t, "read") {
			case 0:
				node.ReadAll()
			case 1:
				node.Show()
			case 2:
				node.ReadText()
			}
		}
		return root
	})
}

// hidden stands for the nth text.
func hidden(n int) string { return fmt.Sprint("hidden ", n) }

func keyOf(p *Projection, document any) *Key {
	k := &Key{}
	k.Append(p, document)
	return k
}

// TestKey is equal exactly where projections are but for what is shown, and a
// projection projects to itself.
func TestKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewProjection(trees().Draw(t, "tree"))
		a, b := documents().Draw(t, "a"), documents().Draw(t, "b")
		projected := p.Project(a, hidden)
		alike := cmp.Equal(projected, p.Project(b, hidden))
		if sameKey := string(keyOf(p, a).Bytes) == string(keyOf(p, b).Bytes); sameKey != alike {
			t.Fatalf("same key: %v, equal projections: %v", sameKey, alike)
		}
		for _, hide := range []func(int) string{hidden, nil} {
			projected := p.Project(a, hide)
			if diff := cmp.Diff(projected, p.Project(projected, hide)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// TestTexts of keys are what Project hides, in the same order.
func TestTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewProjection(trees().Draw(t, "tree"))
		document := documents().Draw(t, "document")
		texts := keyOf(p, document).Texts
		n := 0
		found := p.Project(document, func(i int) string {
			if i != n || i >= len(texts) {
				t.Fatalf("text %d comes after %d of %d", i, n, len(texts))
			}
			n++
			return texts[i]
		})
		if n != len(texts) {
			t.Fatalf("%d texts of %d are hidden", n, len(texts))
		}
		if diff := cmp.Diff(p.Project(document, nil), found); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestKeyIsUsedAgain after Reset.
func TestKeyIsUsedAgain(t *testing.T) {
	p := NewProjection(tree(func(t *Tree) { t.Field("metadata").Field("name").Show(); t.Field("spec").ReadAll() }))
	k := keyOf(p, pod())
	want := *keyOf(p, pod())
	k.Reset()
	if len(k.Bytes)+len(k.Texts) > 0 {
		t.Errorf("after Reset: %v", k)
	}
	k.Append(p, pod())
	if string(k.Bytes) != string(want.Bytes) || !cmp.Equal(k.Texts, []string{"a"}) {
		t.Errorf("the second time: %q with %v, want %q", k.Bytes, k.Texts, want.Bytes)
	}
}

// read follows a path of field names as a program would that finds one value only.
func read(document any, path []string) (any, bool) {
	for _, name := range path {
		object, ok := document.(map[string]any)
		if !ok {
			return nil, false
		}
		if document, ok = object[name]; !ok {
			return nil, false
		}
	}
	return document, true
}

// TestReadsSeeNoDifference between a document and its projection along the paths that
// are in the tree.
func TestReadsSeeNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root := trees().Draw(t, "tree")
		path := rapid.SliceOfN(names, 0, 4).Draw(t, "path")
		node := root
		for _, name := range path {
			node = node.Field(name)
		}
		whole := rapid.Bool().Draw(t, "all of it")
		if whole {
			node.ReadAll()
		}
		isText := rapid.Bool().Draw(t, "texts")
		if isText {
			node.ReadText()
		}
		document := documents().Draw(t, "document")
		got, gotOK := read(NewProjection(root).Project(document, hidden), path)
		want, wantOK := read(document, path)
		if _, ok := want.(string); ok && isText && got != want {
			t.Fatalf("got text %v, want %v", got, want)
		}
		if gotOK != wantOK || fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) || whole && !cmp.Equal(got, want) {
			t.Fatalf("got %v %v, want %v %v", got, gotOK, want, wantOK)
		}
	})
}
