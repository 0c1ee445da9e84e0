package rego

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
)

// textGenerator makes random programs about texts of the input: they are put into
// messages, and sometimes something else is done with them.
type textGenerator struct {
	r *rand.Rand
	n int
	// vars have a value in the body that is made.
	vars  []string
	rules []randomRule
	// nested is how deep in terms the place is that is made.
	nested int
}

func (g *textGenerator) pick(s ...string) string { return s[g.r.Intn(len(s))] }

func (g *textGenerator) name(prefix string) string {
	g.n++
	return fmt.Sprint(prefix, g.n)
}

func (g *textGenerator) field() string { return fieldNames[g.r.Intn(4)] }

// source is a part of the input that is often a text.
func (g *textGenerator) source() string {
	switch g.r.Intn(6) {
	case 0:
		return "input.review." + g.pick("name", "namespace", "kind.kind")
	case 1:
		return "input.review.object.metadata." + g.pick("name", "uid", "labels."+g.field())
	case 2:
		return "input.review.object." + g.pick("list[0]", "list[0]."+g.field(), g.field()+"["+g.known()+"]")
	}
	return "input.review.object." + g.pick(g.field(), g.field(), g.field()+"."+g.field())
}

// known is something that has a value.
func (g *textGenerator) known() string {
	if len(g.vars) > 0 && g.r.Intn(4) > 0 {
		return g.vars[g.r.Intn(len(g.vars))]
	}
	return g.pick(`"a"`, `"b"`, `"x"`, "input.parameters.x", "input.parameters.x", "input.review.name", "input.review.kind.kind")
}

// texts are terms of which a message is made.
func (g *textGenerator) texts(n int) string {
	var out []string
	for range n {
		out = append(out, g.pick(g.known(), g.known(), g.source(), g.source()))
	}
	return strings.Join(out, ", ")
}

func (g *textGenerator) format(n int) string {
	var out []string
	for range n {
		out = append(out, g.pick("%v", "%v", "%v", "%s", "%s", "%s", "%d", "%q", "%4v", "%-3s", "%.1s", "%x", "%T"))
	}
	format := g.pick("", "m ", "%% ", "é") + strings.Join(out, g.pick("", "/", "%%", " a"))
	if g.r.Intn(15) == 0 {
		format += g.pick("%v", "%", "%[1]v", "%*d", "%!")
	}
	return format
}

// message is a text that is made of others.
func (g *textGenerator) message() string {
	n := 1 + g.r.Intn(3)
	switch g.r.Intn(10) {
	case 0, 1:
		return fmt.Sprintf("concat(%q, [%s])", g.pick("", ", ", "a"), g.texts(n))
	case 2:
		return fmt.Sprintf("concat(%s, [%s])", g.known(), g.texts(n))
	case 3:
		return fmt.Sprintf("sprintf(%s, [%s])", g.known(), g.texts(n))
	}
	return fmt.Sprintf("sprintf(%q, [%s])", g.format(n), g.texts(n))
}

// term is something that may be a text, or have texts in it.
func (g *textGenerator) term() string {
	g.nested++
	defer func() { g.nested-- }()
	k := g.r.Intn(40)
	if g.nested > 3 {
		k = g.r.Intn(18)
	}
	switch {
	case k < 10:
		return g.source()
	case k < 14:
		return g.source()
	case k < 18:
		return g.message()
	case k < 26 && len(g.rules) > 0:
		return g.rule(g.rules[g.r.Intn(len(g.rules))])
	case k == 26:
		return fmt.Sprintf("object.get(%s, %s, %s)", g.pick(g.source(), "input.review.object"), g.pick(`"a"`, `["x", "a"]`, "["+g.known()+"]", g.known()), g.known())
	case k == 27:
		return g.pick("upper", "json.marshal", "type_name", "count", "is_string") + "(" + g.term() + ")"
	case k == 28:
		return g.pick("trim_prefix", "trim", "split", "startswith", "contains", "format_int") + "(" + g.term() + ", " + g.known() + ")"
	case k == 29:
		return "substring(" + g.term() + ", 0, 2)"
	case k == 30:
		return "[" + g.texts(2) + "]" + g.pick("", "[_]", "[0]")
	case k == 31:
		return "{" + g.texts(2) + "}" + g.pick("", "[_]")
	case k == 32:
		return `{"a": ` + g.term() + `, "msg": ` + g.known() + "}" + g.pick("", ".a", ".msg", "[_]")
	case k == 33:
		return fmt.Sprintf("[t | t := %s]", g.term()) + g.pick("", "[_]", "[0]")
	case k == 34:
		return fmt.Sprintf("{t | t := %s}", g.term()) + g.pick("", "[_]")
	case k == 35:
		return fmt.Sprintf("{t: %s | t := %s}", g.known(), g.term()) + g.pick("", "[_]", ".a")
	case k == 36:
		return "input.review.object.list[_]" + g.pick("", "."+g.field())
	case k == 37:
		return "input.review.object" + g.pick("", "[_]", "["+g.known()+"]")
	}
	return g.source()
}

// rule is what a rule gives.
func (g *textGenerator) rule(rule randomRule) string {
	switch rule.kind {
	case "func":
		var args []string
		for range rule.arity {
			args = append(args, g.term())
		}
		return rule.name + "(" + strings.Join(args, ", ") + ")"
	case "set":
		return rule.name + g.pick("", "[_]", "[_]", "[_]", "["+g.known()+"]")
	}
	return rule.name
}

// condition asks something of what has a value.
func (g *textGenerator) condition() string {
	switch g.r.Intn(14) {
	case 0, 1:
		return g.known()
	case 2:
		return "not " + g.known() + g.pick("", " == "+g.known(), "."+g.field())
	case 3:
		return g.known() + g.pick(" == ", " = ", " != ", " < ") + g.pick(g.known(), g.source(), `"a"`, `"x"`)
	case 4:
		return g.source() + g.pick(" == ", " = ", " != ", " >= ") + g.pick(g.known(), g.source(), `"b"`)
	case 5:
		return "count(" + g.term() + ")" + g.pick(" > ", " == ") + g.pick("0", "1", "2")
	case 6:
		return g.pick("is_string(", "is_object(", "is_null(") + g.known() + ")"
	case 7:
		return "startswith(" + g.known() + ", " + g.known() + ")"
	case 8:
		return g.known() + " in " + g.term()
	case 9:
		return "[" + g.known() + ", _] = [" + g.term() + ", " + g.known() + "]"
	case 10:
		return g.source()
	case 11:
		return "not " + g.source()
	case 12:
		return "input.parameters" + g.pick(".on", ".labels", ".absent")
	}
	return "not input.parameters" + g.pick(".on", ".absent")
}

func (g *textGenerator) body() string {
	var out []string
	for range 1 + g.r.Intn(3) {
		if g.r.Intn(3) > 0 {
			v, term := g.name("v"), g.term()
			g.vars = append(g.vars, v)
			out = append(out, v+g.pick(" := ", " := ", " = ")+term)
		} else {
			out = append(out, g.condition())
		}
	}
	return strings.Join(out, "; ")
}

// in makes something with variables of its own.
func (g *textGenerator) in(vars []string, f func()) {
	outer := g.vars
	g.vars = append([]string{}, vars...)
	f()
	g.vars = outer
}

func (g *textGenerator) helper() string {
	rule := randomRule{name: g.name("r"), kind: g.pick("complete", "set", "func", "func", "func")}
	if rule.kind == "func" {
		rule.arity = 1 + g.r.Intn(2)
	}
	var out []string
	guard := g.pick("", "", "input.parameters.on; ", "input.review.object.y; ")
	for i := range 1 + g.r.Intn(2) {
		var params, vars []string
		for range rule.arity {
			v := g.name("p")
			if g.r.Intn(6) == 0 {
				params = append(params, g.pick(`"a"`, `"x"`, "["+v+", _]"))
				continue
			}
			params, vars = append(params, v), append(vars, v)
		}
		g.in(vars, func() {
			body := g.body()
			if guard != "" {
				body = []string{"", g.pick("", "not ", "not ")}[i] + guard + body
			}
			head := rule.name
			switch value := g.pick(g.known(), g.known(), g.message()); rule.kind {
			case "func":
				head += "(" + strings.Join(params, ", ") + ") = " + value
			case "set":
				head += "[" + value + "]"
			default:
				head += " = " + value
			}
			text := head + " { " + body + " }"
			if rule.kind != "set" && g.r.Intn(6) == 0 {
				text += " else = " + g.pick(append(vars, `"a"`)...) + " { " + g.pick("true", "input.review.object.b") + " }"
			}
			out = append(out, text)
		})
	}
	if rule.kind == "complete" && g.r.Intn(4) == 0 {
		out = append(out, "default "+rule.name+` = "a"`)
	}
	g.rules = append(g.rules, rule)
	return strings.Join(out, "\n")
}

func (g *textGenerator) violation() string {
	var text string
	g.in(nil, func() {
		body := g.body()
		if g.r.Intn(3) == 0 {
			body += "; " + g.body()
		}
		msg := g.pick(g.message(), g.message(), g.known())
		if g.r.Intn(2) == 0 {
			body += "; msg := " + msg
			msg = "msg"
			g.vars = append(g.vars, "msg")
		}
		if g.r.Intn(4) == 0 {
			body += "; " + g.condition()
		}
		details := ""
		if g.r.Intn(5) == 0 {
			details = `, "details": ` + g.pick(g.known(), `{"d": `+g.known()+"}", g.term())
		}
		text = fmt.Sprintf(`violation[{"msg": %s%s}] { %s }`, msg, details, body)
	})
	return text
}

func (g *textGenerator) program() string {
	out := []string{"package t", "import future.keywords.in"}
	for range g.r.Intn(4) {
		out = append(out, g.helper())
	}
	for range 1 + g.r.Intn(2) {
		out = append(out, g.violation())
	}
	if g.r.Intn(6) == 0 {
		g.rules = append(g.rules, randomRule{name: "violation", kind: "set"})
		out = append(out, g.helper())
		out = append(out, `violation[{"msg": "again"}] { `+g.rule(g.rules[len(g.rules)-1])+" }")
	}
	return strings.Join(out, "\n")
}

// textReview returns a random review with many texts.
func textReview(r *rand.Rand) any {
	review := randomReview(r)
	object := review["object"].(map[string]any)
	for _, name := range fieldNames[:4] {
		switch r.Intn(8) {
		case 0, 1, 2, 3:
			object[name] = fieldNames[r.Intn(len(fieldNames))]
		case 4:
			object[name] = map[string]any{"a": fieldNames[r.Intn(4)], "b": fieldNames[r.Intn(4)], "x": fieldNames[r.Intn(4)]}
		}
	}
	text := func() string { return fieldNames[r.Intn(4)] }
	review["name"], review["namespace"] = text(), text()
	object["metadata"] = map[string]any{"name": text(), "uid": text(), "labels": map[string]any{"a": text(), "x": text()}}
	if r.Intn(3) == 0 {
		object["list"] = []any{fieldNames[r.Intn(4)], map[string]any{"a": fieldNames[r.Intn(4)]}}
	}
	return review
}

// FuzzTexts makes programs about texts from seeds.
func FuzzTexts(f *testing.F) {
	for seed := range int64(2000) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		g := &textGenerator{r: rand.New(rand.NewSource(seed))}
		text := g.program()
		p, err := Compile(Source{Rego: text})
		if err != nil {
			return // not all of them are well formed
		}
		if checkProjection(t, p, textReview, seed, 12); t.Failed() {
			t.Log(text)
		}
	})
}
