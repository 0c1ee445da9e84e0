package rego

import (
	"fmt"
	"math/rand"
	"strconv"
	"strings"
)

// programGenerator makes random programs that are well formed, or nearly so.
type programGenerator struct {
	r     *rand.Rand
	v1    bool
	rules []randomRule
	n     int
	depth int
}

// randomRule is a rule that others can refer to.
type randomRule struct {
	name  string
	kind  string // complete set object func
	arity int
}

func (g *programGenerator) pick(s ...string) string { return s[g.r.Intn(len(s))] }

func (g *programGenerator) name() string { return fieldNames[g.r.Intn(len(fieldNames))] }

// v is a variable of a small pool, often reused.
func (g *programGenerator) v() string { return "v" + strconv.Itoa(g.r.Intn(6)) }

// scope has the variables that have a value.
type scope struct{ vars []string }

func (e *scope) has(v string) bool {
	for _, x := range e.vars {
		if x == v {
			return true
		}
	}
	return false
}

func (e *scope) add(v string) string {
	if !e.has(v) {
		e.vars = append(e.vars, v)
	}
	return v
}
func (e *scope) clone() *scope { return &scope{append([]string{}, e.vars...)} }

// steps of a ref; iterating introduces variables
func (g *programGenerator) steps(e *scope, iter bool) string {
	out := ""
	for i := g.r.Intn(3); i > 0; i-- {
		switch k := g.r.Intn(14); {
		case k < 7:
			out += "." + g.name()
		case k == 7:
			out += "[" + strconv.Itoa(g.r.Intn(2)) + "]"
		case k < 10 && iter:
			out += "[_]"
		case k < 12 && iter:
			out += "[" + e.add(g.v()) + "]"
		case k == 12 && iter && g.r.Intn(4) == 0:
			out += "[[" + e.add(g.v()) + ", " + e.add(g.v()) + "]]"
		default:
			if len(e.vars) > 0 {
				out += "[" + e.vars[g.r.Intn(len(e.vars))] + "]"
			}
		}
	}
	return out
}

func (g *programGenerator) ref(e *scope, iter bool) string {
	k := g.r.Intn(10)
	if k < 4 && len(e.vars) > 0 {
		return e.vars[g.r.Intn(len(e.vars))] + g.steps(e, iter)
	}
	if k < 7 && len(g.rules) > 0 {
		ru := g.rules[g.r.Intn(len(g.rules))]
		switch ru.kind {
		case "func":
			return g.callf(e, ru)
		case "set":
			if iter && g.r.Intn(2) == 0 {
				return ru.name + "[" + g.pick("_", e.add(g.v())) + "]" + g.steps(e, iter)
			}
		}
		return ru.name + g.steps(e, iter)
	}
	if k == 7 && g.r.Intn(4) == 0 {
		return "input.parameters." + g.pick("x", "o.y", "labels", "p", "o", "labels[_]")
	}
	return "input.review.object." + g.name() + g.steps(e, iter)
}

func (g *programGenerator) callf(e *scope, ru randomRule) string {
	var args []string
	for i := 0; i < ru.arity; i++ {
		args = append(args, g.term(e, true))
	}
	return ru.name + "(" + strings.Join(args, ", ") + ")"
}

func (g *programGenerator) lit() string {
	return g.pick(`"a"`, `"b"`, `"x"`, "1", "0", "true", "null", `{}`, `[]`, `["a", "b"]`, `{"a", "x"}`, `{"a": "b"}`, `set()`)
}

func (g *programGenerator) compr(e *scope) string {
	in := e.clone()
	body := g.body(in, 1+g.r.Intn(2), "; ")
	t := g.bound(in)
	switch g.r.Intn(5) {
	case 0, 1:
		return "[" + t + " | " + body + "]"
	case 2, 3:
		return "{" + t + " | " + body + "}"
	}
	return "{" + g.bound(in) + ": " + t + " | " + body + "}"
}

// bound is a term without new variables
func (g *programGenerator) bound(e *scope) string {
	switch g.r.Intn(6) {
	case 0:
		return g.lit()
	case 1:
		if g.depth > 5 {
			return g.lit()
		}
		g.depth += 2
		defer func() { g.depth -= 2 }()
		return g.ref(e, false)
	case 2:
		return "input.review.object." + g.name()
	}
	if len(e.vars) > 0 {
		v := e.vars[g.r.Intn(len(e.vars))]
		if g.r.Intn(3) == 0 {
			v += "." + g.name()
		}
		return v
	}
	return g.lit()
}

func (g *programGenerator) term(e *scope, iter bool) string {
	g.depth++
	defer func() { g.depth-- }()
	if g.depth > 4 {
		return "input.review.object." + g.name()
	}
	switch k := g.r.Intn(24); {
	case k < 11:
		return g.ref(e, iter)
	case k < 13:
		return g.lit()
	case k < 17:
		return g.compr(e)
	case k == 17:
		return "[" + g.bound(e) + ", " + g.bound(e) + "]"
	case k == 18:
		return "{" + g.bound(e) + ", " + g.bound(e) + "}"
	case k == 19:
		return `{"` + g.name() + `": ` + g.bound(e) + `, "` + g.pick("y", "z") + `": ` + g.bound(e) + "}"
	case k == 20:
		return fmt.Sprintf("object.get(%s, %s, %s)", g.term(e, iter), g.pick(`"a"`, `"x"`, `["a", "x"]`, `["list", 0]`, `[]`, g.bound(e)), g.bound(e))
	case k == 21:
		return "(" + g.compr(e) + g.pick(" & ", " | ", " - ") + g.term(e, iter) + ")"
	case k == 22:
		return g.pick("count(", "sort(", "max(", "json.marshal(", "object.keys(", "type_name(", "union({set(), ", "split(", "array.reverse(", "object.union({}, ", "array.concat([], ", "is_object(", "json.unmarshal(", "to_number(", "concat(\"\", ") + g.term(e, iter) + ")"
	default:
		return g.compr(e) + g.pick("[_]", "["+e.add(g.v())+"]", "[0]")
	}
}

func (g *programGenerator) pattern(e *scope) string {
	one := func() string {
		if g.r.Intn(4) == 0 {
			return g.pick("_", `"a"`, `1`)
		}
		return e.add(g.v())
	}
	switch g.r.Intn(5) {
	case 0:
		return "{" + `"a": ` + one() + "}"
	case 1:
		return "[" + one() + ", [" + one() + "]]"
	}
	return "[" + one() + ", " + one() + "]"
}

func (g *programGenerator) expr(e *scope) string {
	switch k := g.r.Intn(30); {
	case k < 6: // unify with a var
		t := g.term(e, true)
		v := g.v()
		e.add(v)
		if g.r.Intn(4) == 0 {
			return t + " = " + v
		}
		return v + " = " + t
	case k < 9:
		t := g.term(e, true)
		g.n++
		v := fmt.Sprintf("w%d", g.n)
		e.add(v)
		return v + " := " + t + "; " + v + " != 17"
	case k < 12:
		return g.ref(e, true)
	case k < 14:
		return g.ref(e, true) + " = " + g.term(e, true)
	case k < 16:
		return g.bound(e) + g.pick(" == ", " != ", " < ", " >= ") + g.pick(g.lit(), g.bound(e))
	case k < 18:
		return "not " + g.ref(e, false)
	case k == 18:
		return "not " + g.bound(e) + " == " + g.bound(e)
	case k < 21:
		t := g.term(e, true)
		if g.r.Intn(2) == 0 {
			return g.pattern(e) + " = " + t
		}
		return t + " = " + g.pattern(e)
	case k == 21:
		return "count(" + g.term(e, true) + ")" + g.pick(" > ", " == ", " != ") + g.pick("0", "1", "2")
	case k == 22:
		return "walk(" + g.ref(e, true) + ", [" + e.add(g.v()) + ", " + e.add(g.v()) + "])"
	case k < 25:
		t := g.term(e, true)
		g.n++
		v, key := fmt.Sprintf("s%d", g.n), fmt.Sprintf("k%d", g.n)
		e.add(v)
		if g.r.Intn(2) == 0 {
			e.add(key)
			return "some " + key + ", " + v + " in " + t + "; [" + key + ", " + v + "] != 17"
		}
		if g.r.Intn(4) == 0 {
			e.add(key)
			return "some [" + key + ", " + v + "] in " + t + "; " + key + " != 17; " + v + " != 17"
		}
		return "some " + v + " in " + t
	case k < 27:
		in := e.clone()
		t := g.term(e, true)
		g.n++
		v, key := fmt.Sprintf("s%d", g.n), fmt.Sprintf("k%d", g.n)
		in.add(v)
		kk := ""
		use := v + " != 17; "
		if g.r.Intn(2) == 0 {
			in.add(key)
			kk = key + ", "
			use += key + " != 17; "
		}
		if g.r.Intn(2) == 0 {
			use = ""
		}
		return "every " + kk + v + " in " + t + " { " + use + g.body(in, 1, "; ") + " }"
	case k == 27:
		return g.bound(e) + " in " + g.term(e, true)
	case k == 28:
		return e.add(g.v()) + " = " + g.bound(e)
	default:
		return g.ref(e, true) + g.pick(" == ", " = ", " > ") + g.lit()
	}
}

func (g *programGenerator) body(e *scope, n int, sep string) string {
	g.depth++
	defer func() { g.depth-- }()
	if g.depth > 5 {
		return "input.review.object." + g.name() + g.steps(e, true)
	}
	var out []string
	for i := 0; i < n; i++ {
		out = append(out, g.expr(e))
	}
	return strings.Join(out, sep)
}

func (g *programGenerator) rule() string {
	g.n++
	name := fmt.Sprintf("r%d", g.n)
	ifs, assign := "", " = "
	if g.v1 {
		ifs, assign = "if ", " := "
	}
	one := func(head func(e *scope) string, params []string) string {
		e := &scope{params}
		b := g.body(e, 1+g.r.Intn(3), "; ")
		return head(e) + " " + ifs + "{ " + b + " }"
	}
	var out []string
	kind := g.pick("complete", "complete", "set", "set", "object", "func", "func", "func", "ref", "refset")
	defs := 1 + g.r.Intn(2)
	ru := randomRule{name: name, kind: kind}
	guard := g.r.Intn(3) == 0
	guards := []string{`input.review.kind.kind == "Pod"; `, `input.review.kind.kind == "Job"; `}
	switch kind {
	case "complete":
		if g.r.Intn(4) == 0 {
			out = append(out, "default "+name+assign+g.pick("{}", "[]", `"a"`, "false"))
		}
		for i := 0; i < defs; i++ {
			s := one(func(e *scope) string { return name + assign + g.bound(e) }, nil)
			if guard {
				s = strings.Replace(s, "{ ", "{ "+guards[i], 1)
			}
			if g.r.Intn(4) == 0 {
				e := &scope{}
				b := g.body(e, 1, "; ")
				s += " else" + assign + g.bound(e) + " " + ifs + "{ " + b + " }"
			}
			out = append(out, s)
		}
	case "func":
		ru.arity = 1 + g.r.Intn(2)
		for i := 0; i < defs; i++ {
			e := &scope{}
			var ps []string
			for j := 0; j < ru.arity; j++ {
				switch g.r.Intn(10) {
				case 0:
					ps = append(ps, g.pick(`"a"`, `"x"`, "1"))
				case 1:
					ps = append(ps, g.pattern(e))
				case 2:
					ps = append(ps, "_")
				case 3:
					ps = append(ps, e.add("v0"))
				default:
					ps = append(ps, e.add("p"+strconv.Itoa(j)))
				}
			}
			params := append([]string{}, e.vars...)
			s := one(func(e *scope) string {
				h := name + "(" + strings.Join(ps, ", ") + ")"
				if g.r.Intn(3) > 0 {
					h += assign + g.bound(e)
				}
				return h
			}, params)
			if guard {
				s = strings.Replace(s, "{ ", "{ "+guards[i], 1)
			}
			if g.r.Intn(4) == 0 {
				e := &scope{params}
				b := g.body(e, 1, "; ")
				s += " else" + assign + g.bound(e) + " " + ifs + "{ " + b + " }"
			}
			out = append(out, s)
		}
	case "set":
		for i := 0; i < defs; i++ {
			out = append(out, one(func(e *scope) string {
				t := g.pick(g.bound(e), g.bound(e), "["+g.bound(e)+", "+g.bound(e)+"]")
				if g.v1 {
					return name + " contains " + t
				}
				return name + "[" + t + "]"
			}, nil))
		}
	case "object":
		for i := 0; i < defs; i++ {
			out = append(out, one(func(e *scope) string { return name + "[" + g.bound(e) + "]" + assign + g.bound(e) }, nil))
		}
	case "ref":
		for i := 0; i < defs; i++ {
			out = append(out, one(func(e *scope) string {
				return name + "." + g.pick("a", "b", "a.x", "a["+g.bound(e)+"]", "a["+g.bound(e)+"].x") + assign + g.bound(e)
			}, nil))
		}
	case "refset":
		if !g.v1 {
			return ""
		}
		for i := 0; i < defs; i++ {
			out = append(out, one(func(e *scope) string {
				return name + "." + g.pick("a", "b", "a["+g.bound(e)+"]", "a["+g.bound(e)+"].x") + " contains " + g.bound(e)
			}, nil))
		}
	}
	g.rules = append(g.rules, ru)
	return strings.Join(out, "\n")
}

// program returns the rules, one a line.
func (g *programGenerator) program() []string {
	var out []string
	for i := g.r.Intn(5); i > 0; i-- {
		out = append(out, strings.Split(g.rule(), "\n")...)
	}
	for i := 0; i < 1+g.r.Intn(2); i++ {
		e := &scope{}
		b := g.body(e, 1+g.r.Intn(4), "; ")
		el := fmt.Sprintf(`{"msg": "m%d"}`, i)
		if g.r.Intn(5) == 0 {
			el = fmt.Sprintf(`{"msg": "m%d", "details": {"d": %s}}`, i, g.bound(e))
		}
		if g.v1 {
			out = append(out, "violation contains "+el+" if { "+b+" }")
		} else {
			out = append(out, "violation["+el+"] { "+b+" }")
		}
	}
	return out
}
