package directory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// summary writes down what was parsed, one line an object or problem.
func summary(p parsed) []string {
	var out []string
	for _, m := range p.manifests {
		out = append(out, fmt.Sprintf("%s: %s %s/%s", m.place, m.gvk, m.namespace, m.name))
	}
	for _, problem := range p.problems {
		out = append(out, "problem: "+problem)
	}
	return out
}

func TestParse(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n"
	const podA = "document 1 (line 1): /v1, Kind=Pod /a"
	const jsonA = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}`
	const brackets = "{apiVersion: v1, kind: Pod,\n metadata: {name: a}}\n"
	follows := func(number, line, where int) string {
		return fmt.Sprintf("problem: document %d (line %d) is not valid YAML or JSON: line %d: something follows the end of the document without a line --- between; correct it", number, line, where)
	}
	for _, test := range []struct {
		name, content string
		want          []string
	}{
		{"one object", pod, []string{podA}},
		{"byte order mark", "\xef\xbb\xbf" + pod, []string{podA}},
		{"line ends of Windows", strings.ReplaceAll(pod+"---\n"+pod, "\n", "\r\n"), []string{podA, "document 2 (line 6): /v1, Kind=Pod /a"}},
		{"nothing", "", nil},
		{"blanks and comments", "\n# a\n---\n# b\n---\n\n", nil},
		{"null", "null\n---\n~\n", nil},
		{"documents", "# head\n---\n" + pod + "---\n---\n# none\n--- # comment\n" + pod, []string{
			"document 1 (line 3): /v1, Kind=Pod /a", "document 2 (line 11): /v1, Kind=Pod /a",
		}},
		{"document on the line of its marker", "--- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n", []string{podA}},
		{"directive and end marker", "%YAML 1.1\n---\n" + pod + "...\n# after\n---\n" + pod, []string{
			"document 1 (line 3): /v1, Kind=Pod /a", "document 2 (line 10): /v1, Kind=Pod /a",
		}},
		{"marker inside of a text", pod + "data: |\n  ---\n  x\n ---x: 1\n", []string{
			"problem: document 1 (line 1) is not valid YAML or JSON: line 7: did not find expected key; correct it",
		}},
		{"text that looks like a marker", pod + "note: |\n  ---\n", []string{podA}},
		{"broken document among others", pod + "---\na: [\n---\n" + pod, []string{
			podA, "document 3 (line 8): /v1, Kind=Pod /a",
			"problem: document 2 (line 6) is not valid YAML or JSON: line 6: did not find expected node content; correct it",
		}},
		{"key twice", pod + "kind: Service\n", []string{
			`problem: document 1 (line 1) is not valid YAML or JSON: line 5: key "kind" already set in map; correct it`,
		}},
		{"template", "kind: {{ .Values.kind }}\n", []string{
			"problem: document 1 (line 1) is not valid YAML or JSON: invalid map key: map[interface {}]interface {}{\".Values.kind\":interface {}(nil)}; correct it, or render it first if it is a template",
		}},
		{"no object", "replicas: 1\n", []string{"problem: document 1 (line 1) " + errNoObject.Error()}},
		{"scalar", "hello\n", []string{"problem: document 1 (line 1) " + errNoObject.Error()}},
		{"sequence", "- " + strings.ReplaceAll(pod, "\n", "\n  "), []string{"problem: document 1 (line 1) " + errNoObject.Error()}},
		{"no apiVersion", "kind: Pod\nmetadata: {name: a}\n", []string{"problem: document 1 (line 1) has no apiVersion; add it, or move it out of the folder if it is not a Kubernetes object"}},
		{"no kind", "apiVersion: v2\nname: chart\n", []string{"problem: document 1 (line 1) has no kind; add it, or move it out of the folder if it is not a Kubernetes object"}},
		{"wrong apiVersion", "apiVersion: a/b/c\nkind: Pod\n", []string{`problem: document 1 (line 1) has the apiVersion "a/b/c"; it must be a version or group/version`}},
		{"no metadata", "apiVersion: v1\nkind: Pod\n", []string{"problem: document 1 (line 1) (Pod) has no metadata; add metadata.name"}},
		{"no name", "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n", []string{"problem: document 1 (line 1) (Pod) has no metadata.name; add it"}},
		{"name that is a boolean", "apiVersion: v1\nkind: Pod\nmetadata: {name: on}\n", []string{
			"problem: document 1 (line 1) (Pod) has a metadata.name that is not a string: true; put it in quotes",
		}},
		{"label that is a number", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {v: 1.0}}\n", []string{
			"problem: document 1 (line 1) (Pod) has a value that is not a string in metadata.labels, of v; put it in quotes",
		}},
		{"kustomization", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: []\n", nil},
		{"object of the same kind", "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: apps, namespace: flux}\n", []string{
			"document 1 (line 1): kustomize.toolkit.fluxcd.io/v1, Kind=Kustomization flux/apps",
		}},
		{"list", "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(pod, "\n", "\n  ") + "\n- {kind: Pod}\n", []string{
			"document 1 (line 1), item 1: /v1, Kind=Pod /a",
			"problem: document 1 (line 1), item 2 has no apiVersion; add it, or move it out of the folder if it is not a Kubernetes object",
		}},
		{"list of a kind", "apiVersion: apps/v1\nkind: DeploymentList\nmetadata: {resourceVersion: '7'}\nitems:\n- {metadata: {name: a}}\n", []string{
			"document 1 (line 1), item 1: apps/v1, Kind=Deployment /a",
		}},
		{"list of nothing", "apiVersion: v1\nkind: List\nitems: []\n---\napiVersion: v1\nkind: List\nitems:\n", nil},
		{"list with a name", "apiVersion: v1\nkind: List\nmetadata: {name: all}\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- 1\n", []string{
			"document 1 (line 1), item 1: /v1, Kind=Pod /a",
			"problem: document 1 (line 1), item 2 " + errNoObject.Error(),
		}},
		{"list of a kind with a name", "apiVersion: v1\nkind: PodList\nmetadata: {name: all, namespace: x}\nitems: [{metadata: {name: a}}, {spec: {}}]\n", []string{
			"document 1 (line 1), item 1: /v1, Kind=Pod /a",
			"problem: document 1 (line 1), item 2 (Pod) has no metadata; add metadata.name",
		}},
		{"list of a custom kind with a name", "apiVersion: x.io/v1\nkind: CarList\nmetadata: {name: all}\nitems: [{metadata: {name: a}}, {kind: Bus, apiVersion: y.io/v1, metadata: {name: b}}]\n", []string{
			"document 1 (line 1), item 1: x.io/v1, Kind=Car /a", "document 1 (line 1), item 2: y.io/v1, Kind=Bus /b",
		}},
		{"list in a list, with names", "apiVersion: v1\nkind: List\nmetadata: {name: all}\nitems:\n- {apiVersion: v1, kind: PodList, metadata: {name: pods}, items: [{metadata: {name: a}}]}\n", []string{
			"document 1 (line 1), item 1, item 1: /v1, Kind=Pod /a",
		}},
		{"list that is not called one", "apiVersion: x.io/v1\nkind: Bundle\nmetadata: {name: all}\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]\n", []string{
			"document 1 (line 1), item 1: /v1, Kind=Pod /a",
		}},
		{"object with items", "apiVersion: x.io/v1\nkind: Menu\nmetadata: {name: a}\nitems: [{kind: soup}, {metadata: {}}]\n", []string{
			"document 1 (line 1): x.io/v1, Kind=Menu /a",
		}},
		{"list of nothing with a name", "apiVersion: v1\nkind: ConfigMapList\nmetadata: {name: all}\nitems: []\n---\napiVersion: v1\nkind: List\nmetadata: {name: all}\nitems:\n", nil},
		{"list without items", "apiVersion: v1\nkind: List\nmetadata: {name: all}\n---\napiVersion: apps/v1\nkind: DeploymentList\nitems: {a: {}}\n", []string{
			"problem: document 1 (line 1) (List) has no items that are a list; correct it",
			"problem: document 2 (line 5) (DeploymentList) has no items that are a list; correct it",
		}},
		{"object whose kind is called a list", "apiVersion: x.io/v1\nkind: AllowList\nmetadata: {name: a}\nitems: [1]\n", []string{
			"document 1 (line 1): x.io/v1, Kind=AllowList /a",
		}},
		{"JSON", "{\n\t\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"a\"}\n}\n\n{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"b\"}}", []string{
			podA, "document 2 (line 5): /v1, Kind=Pod /b",
		}},
		{"half of JSON", "{\n \"apiVersion\": \"v1\",\n", []string{
			"problem: document 1 (line 1) is not valid YAML or JSON: line 2: did not find expected node content; correct it",
		}},
		{"JSON with comments and markers", "# head\n" + jsonA + " # one\n# two\n" + jsonA + "\n---\n\n" + jsonA + jsonA + "\n# end", []string{
			"document 1 (line 2): /v1, Kind=Pod /a", "document 2 (line 4): /v1, Kind=Pod /a",
			"document 3 (line 7): /v1, Kind=Pod /a", "document 4 (line 7): /v1, Kind=Pod /a",
		}},
		{"JSON that was cut off", jsonA + "\n" + jsonA + "\n" + jsonA[:30], []string{
			podA, "document 2 (line 2): /v1, Kind=Pod /a",
			"problem: document 3 (line 3) is not valid YAML or JSON: line 3: found unexpected end of stream; correct it",
		}},
		{"comma after JSON", jsonA + ",\n" + jsonA, []string{
			podA, "problem: document 2 (line 1) is not valid YAML or JSON: did not find expected node content; correct it",
		}},
		{"conflict after JSON", jsonA + "\n<<<<<<< HEAD\n" + jsonA, []string{
			podA, "problem: document 2 (line 2) is not valid YAML or JSON: line 3: mapping values are not allowed in this context; correct it",
		}},
		{"YAML after JSON", jsonA + "\n" + pod, []string{podA, "document 2 (line 2): /v1, Kind=Pod /a"}},
		{"text in JSON that looks like a marker", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "note": "` + "\u2028--- " + `"}`, []string{podA}},
		{"comment after brackets", brackets + "# end\n---\n" + brackets, []string{podA, "document 2 (line 5): /v1, Kind=Pod /a"}},
		{"conflict after brackets", brackets + "<<<<<<< HEAD\n", []string{follows(1, 1, 3)}},
		{"brackets after brackets", "# head\n---\n" + pod + "---\n" + brackets + "\n" + brackets, []string{"document 1 (line 3): /v1, Kind=Pod /a", follows(2, 8, 11)}},
		{"brackets after null", "null # none\n" + brackets, []string{follows(1, 1, 2)}},
		{"brackets after a text", "--- |\n x\n" + brackets, []string{follows(1, 1, 3)}},
		{"key that is indented less", "  " + strings.ReplaceAll(pod, "\n", "\n  ") + "\nspec: {}\n", []string{follows(1, 1, 6)}},
		{"all keys indented", "  " + strings.ReplaceAll(pod, "\n", "\n  "), []string{podA}},
		{"directive without a document", pod + "...\n%junk\n", []string{
			podA, "problem: document 2 (line 6) is not valid YAML or JSON: line 6: found unknown directive name; correct it",
		}},
		{"binary", "\x7fELF\x00\x01", []string{"problem: " + errNotText.Error()}},
		{"not UTF-8", "a: \xff\xfe\n", []string{"problem: " + errNotText.Error()}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, summary(parse([]byte(test.content)))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The line breaks are those of the parser of YAML, in comments and at markers too.
func TestParseLineBreaks(t *testing.T) {
	content := "# head\n\n" + "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n" + "# between\n---\n" +
		"--- # comment\n{apiVersion: v1, kind: Pod,\nmetadata: {name: b}}\n...\n" + `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}` + "\n"
	for _, lineBreak := range []string{"\n", "\r\n", "\r", "\u0085", "\u2028", "\u2029"} {
		for _, head := range []string{"", "\ufeff"} {
			got := summary(parse([]byte(head + strings.ReplaceAll(content, "\n", lineBreak))))
			expect(t, fmt.Sprintf("%q", lineBreak), got,
				"document 1 (line 3): /v1, Kind=Pod /a", "document 2 (line 10): /v1, Kind=Pod /b", "document 3 (line 13): /v1, Kind=Pod /c")
		}
	}
}

// Whatever stands between two objects or behind them, each of the two is found or
// something is said.
func TestParseLosesNothing(t *testing.T) {
	forms := []string{
		`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "%s"}}`,
		"{apiVersion: v1, kind: Pod, metadata: {name: %s}}",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s}",
		"  apiVersion: v1\n  kind: Pod\n  metadata: {name: %s}",
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: %s}}",
	}
	junk := []string{
		"", "\n", " ", "\t", "\r", "\f", "\v", "\u0085", "\u00a0", "\u2028", "\ufeff", ",", ":", "}", "]", "#", "# c\n", "\n# c\n", "\n# c\r",
		"\n# c\u2028", "\n# c\u0085", "\n---\n", "\r---\r", "\u2028---\u2028", "\n--- ", "\n---\t", "\n ---\n", "\n----\n", "\n...\n", "\n... x\n", "\n--- >\n",
		"\n%x\n", "\n%x\n---\n", "\n<<<<<<< HEAD\n", "\n=======\n", "\n>>>>>>> x\n", "\n|\n", "\n'\n", "\n\"\n", "\nnull\n", "\n~ # c\n",
		"\n!!null\n", "\n&a\n", "\n*a\n", "\n? ", "\n- ", "\n\ufeff---\n", "\n---\n\ufeff", "\n\x01\n", "\n{\n", "\n[\n", "\n/* c */\n", "\n// c\n", ";", "\n@\n",
	}
	for _, first := range forms {
		for _, second := range append(forms, "") {
			for _, between := range junk {
				content := fmt.Sprintf(first, "a") + between
				want := 1
				if second != "" {
					content += fmt.Sprintf(second, "b")
					want = 2
				}
				p := parse([]byte(content))
				comment := strings.HasSuffix(between, "#") && second != "" && len(p.manifests) == 1 // the second is a comment
				if len(p.manifests) < want && len(p.problems) == 0 && !comment {
					t.Errorf("%q: %d objects without a problem", content, len(p.manifests))
				}
			}
		}
	}
}

// What no cluster takes is not handed on: streams, indexes and reports rely on it.
func TestParseIdentity(t *testing.T) {
	type fields struct{ apiVersion, kind, namespace, name, uid string }
	long := strings.Repeat("x", 253)
	longNamespace := long[:63]
	for _, test := range []struct {
		change func(*fields)
		want   string // the problem, empty for none
	}{
		{func(*fields) {}, ""},
		{func(f *fields) { f.name = long }, ""},
		{func(f *fields) { f.name += long }, "(Pod) has a wrong metadata.name: it is longer than 253 characters"},
		{func(f *fields) { f.name = "system:Aggregate_to view" }, ""},
		{func(f *fields) { f.name = "${APP}-Bücher" }, ""},
		{func(f *fields) { f.name = "a/b" }, "(Pod) has a wrong metadata.name: it may not contain '/'"},
		{func(f *fields) { f.name = "50%" }, "(Pod) has a wrong metadata.name: it may not contain '%'"},
		{func(f *fields) { f.name = ".." }, "(Pod) has a wrong metadata.name: it may not be '..'"},
		{func(f *fields) { f.namespace = longNamespace }, ""},
		{func(f *fields) { f.namespace = "${NAMESPACE}" }, ""},
		{func(f *fields) { f.namespace = "" }, ""},
		{func(f *fields) { f.namespace = longNamespace + "x" }, "(Pod) has a wrong metadata.namespace: it is longer than 63 characters"},
		{func(f *fields) { f.namespace = "a/b" }, "(Pod) has a wrong metadata.namespace: it contains the character '/'"},
		{func(f *fields) { f.namespace = "köln" }, "(Pod) has a wrong metadata.namespace: it contains the character 'ö'"},
		{func(f *fields) { f.kind = long }, ""},
		{func(f *fields) { f.kind += long }, "has a wrong kind: it is longer than 253 characters"},
		{func(f *fields) { f.kind = "Pod/exec" }, "has a wrong kind: it contains the character '/'"},
		{func(f *fields) { f.kind = "Pöd" }, "has a wrong kind: it contains the character 'ö'"},
		{func(f *fields) { f.apiVersion = long + "/" + long }, ""},
		{func(f *fields) { f.apiVersion = long + "x/v1" }, "has a wrong apiVersion: it is longer than 253 characters"},
		{func(f *fields) { f.apiVersion = "apps/v" + long }, "has a wrong apiVersion: it is longer than 253 characters"},
		{func(f *fields) { f.apiVersion = "äpps/v1" }, "has a wrong apiVersion: it contains the character 'ä'"},
		{func(f *fields) { f.uid = long }, ""},
		{func(f *fields) { f.uid += long }, "(Pod) has a wrong metadata.uid: it is longer than 253 characters"},
	} {
		f := fields{"v1", "Pod", "shop", "a", "u-1"}
		test.change(&f)
		checkIdentity(t, f, test.want)
	}
	for _, invisible := range []rune{0, '\t', '\n', '\r', 0x1b, 0x7f, 0x85, 0xa0, 0x200b, 0x202e, 0x2028, 0xfeff, 0xe0001} {
		for _, test := range []struct {
			change func(*fields, string)
			want   string
		}{
			{func(f *fields, s string) { f.apiVersion = s + "/v1" }, "has a wrong apiVersion"},
			{func(f *fields, s string) { f.apiVersion = "apps/" + s }, "has a wrong apiVersion"},
			{func(f *fields, s string) { f.apiVersion = s }, "has a wrong apiVersion"},
			{func(f *fields, s string) { f.kind = s }, "has a wrong kind"},
			{func(f *fields, s string) { f.namespace = s }, "(Pod) has a wrong metadata.namespace"},
			{func(f *fields, s string) { f.name = s }, "(Pod) has a wrong metadata.name"},
			{func(f *fields, s string) { f.uid = s }, "(Pod) has a wrong metadata.uid"},
		} {
			for _, value := range []string{"a%sb", "%sa", "a%s"} {
				f := fields{"v1", "Pod", "shop", "a", "u-1"}
				test.change(&f, fmt.Sprintf(value, string(invisible)))
				checkIdentity(t, f, fmt.Sprintf("%s: it contains the invisible character %U", test.want, invisible))
			}
		}
	}
}

// A definition does not bring in a resource that no cluster serves.
func TestParseDefinition(t *testing.T) {
	for plural, want := range map[string]bool{
		"cars": true, "": false, "cars/status": false, "c\\u0000rs": false, "c\\u00e4rs": false, strings.Repeat("x", 254): false,
	} {
		p := parse([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"x"},` +
			`"spec":{"group":"shop.io","scope":"Namespaced","names":{"kind":"Car","plural":"` + plural + `"}}}`))
		if len(p.manifests) != 1 || (p.manifests[0].defines != nil) != want {
			t.Errorf("plural %s: %q", plural, summary(p))
		}
	}
}

// checkIdentity parses a valid manifest next to the one with the fields, as
// documents of their own and as items of a list.
func checkIdentity(t *testing.T, fields struct{ apiVersion, kind, namespace, name, uid string }, want string) {
	t.Helper()
	quote := func(s string) string {
		quoted, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(quoted)
	}
	object := fmt.Sprintf(`{"apiVersion":%s,"kind":%s,"metadata":{"namespace":%s,"name":%s,"uid":%s}}`,
		quote(fields.apiVersion), quote(fields.kind), quote(fields.namespace), quote(fields.name), quote(fields.uid))
	const other = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"other"}}`
	for content, place := range map[string]string{
		object + other: "document 1 (line 1) ",
		`{"apiVersion":"v1","kind":"List","items":[` + object + "," + other + "]}": "document 1 (line 1), item 1 ",
	} {
		p := parse([]byte(content))
		switch {
		case want == "":
			if len(p.manifests) != 2 || len(p.problems) != 0 || p.manifests[0].name != fields.name || p.manifests[0].namespace != fields.namespace {
				t.Errorf("%s: %q", content, summary(p))
			}
		case len(p.manifests) != 1 || p.manifests[0].name != "other":
			t.Errorf("%s: %q", content, summary(p))
		case !cmp.Equal(p.problems, []string{place + want + "; correct it"}):
			t.Errorf("%s: problems %q, want %s", content, p.problems, want)
		}
	}
}

func TestParseKeepsNumbers(t *testing.T) {
	p := parse([]byte("apiVersion: v1\nkind: X\nmetadata: {name: a}\nint: 9007199254740993\nfloat: 1.5\n"))
	if len(p.manifests) != 1 {
		t.Fatal(p.problems)
	}
	if got := string(p.manifests[0].json); !strings.Contains(got, `"float":1.5,"int":9007199254740993`) {
		t.Error(got)
	}
}

// An alias that is used over and over describes more than any memory can hold.
func TestParseAliasBomb(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	p := parse([]byte(bomb.String()))
	if len(p.problems) != 1 || !strings.Contains(p.problems[0], "excessive aliasing") {
		t.Errorf("problems: %v", p.problems)
	}
}

func TestParseDeepNesting(t *testing.T) {
	for _, content := range []string{
		strings.Repeat("[", 200_000),
		strings.Repeat("{\"a\":", 200_000),
		strings.Repeat("- ", 200_000) + "x",
	} {
		if p := parse([]byte(content)); len(p.problems) == 0 {
			t.Errorf("no problem with %.10s...", content)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n- x\n...\n%YAML 1.1\n--- \n",
		`{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"b"}}]} {}`,
		"a: &a [x]\nb: *a\n<<: {c: d}\n",
		"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x}\nspec: {scope: Namespaced, names: {kind: A, plural: as}}\n",
		"? [a]\n: b\n", "!!binary x", "\ufeff---\r\n", "1: .nan\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		p := parse(data)
		if !bytes.Equal(before, data) {
			t.Error("the content was changed")
		}
		for _, m := range p.manifests {
			if m.name == "" || m.gvk.Kind == "" || m.gvk.Version == "" || m.hash == "" || !json.Valid(m.json) {
				t.Errorf("incomplete manifest %+v", m)
			}
			o := object{manifest: &m}
			o.key.Name = m.name
			if _, err := o.render(); err != nil {
				t.Error(err)
			}
		}
		if again := parse(data); !reflect.DeepEqual(p, again) {
			t.Error("parsing again gives something else")
		}
	})
}
