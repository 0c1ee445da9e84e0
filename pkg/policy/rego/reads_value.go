package rego

import (
	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// value is what a term may stand for: parts of the input, and collections of such
// parts that the program makes.
type value struct {
	nodes map[*paths.Tree]struct{}
	// elements of collections that the program makes, nil if it makes none.
	elements *value
	// set is true if one of the collections may be a set.
	set bool
	// keyed is true if one of the collections may be an array or an object.
	keyed bool
	// strings are those that the program has.
	strings map[string]struct{}
	// shown are the parts of the input that may be in a text that the program makes, if
	// they are texts.
	shown map[*paths.Tree]struct{}
	// other is true if it may be something else that is no part of the input.
	other bool
}

// fieldNames returns the names that the value, as an index, can only be. known is
// false if it can be anything.
func (v *value) fieldNames() (names map[string]struct{}, known bool) {
	if v.other || len(v.nodes) > 0 || v.elements != nil {
		return nil, false
	}
	return v.strings, true
}

// maxNodes bounds the parts of the input that a term may stand for. A program whose
// variables stand for more has the same names in many places; it is not followed.
const maxNodes = 500

// maxNesting bounds collections of collections.
const maxNesting = 4

// maxRounds bounds the fixed point; programs need about as many as functions call
// each other in a row.
const maxRounds = 100

// flow adds a value to one that is kept from round to round.
func (r *reads) flow(to, from *value) {
	if r.merge(to, from, 0) {
		r.grown = true
	}
}

// merge adds a value to another and tells whether that is news.
func (r *reads) merge(to, from *value, depth int) bool {
	if to == from || r.opaque {
		return false
	}
	if max(len(to.nodes)+len(from.nodes), len(to.shown)+len(from.shown)) > maxNodes {
		r.opaque = true
		return false
	}
	news := addAll(&to.nodes, from.nodes)
	news = addAll(&to.strings, from.strings) || news
	news = addAll(&to.shown, from.shown) || news
	if from.set && !to.set {
		to.set, news = true, true
	}
	if from.keyed && !to.keyed {
		to.keyed, news = true, true
	}
	if from.other && !to.other {
		to.other, news = true, true
	}
	if from.elements == nil {
		return news
	}
	if depth == maxNesting {
		r.readAll(from)
		if !to.other {
			to.other, news = true, true
		}
		return news
	}
	if to.elements == nil {
		to.elements = &value{}
	}
	return r.merge(to.elements, from.elements, depth+1) || news
}

// addAll adds a set to another and tells whether that is news.
func addAll[K comparable](to *map[K]struct{}, from map[K]struct{}) bool {
	before := len(*to)
	if *to == nil && len(from) > 0 {
		*to = map[K]struct{}{}
	}
	for k := range from {
		(*to)[k] = struct{}{}
	}
	return len(*to) > before
}

// readAll enters that a value is read as a whole.
func (r *reads) readAll(v *value) {
	for depth := 0; v != nil && depth <= maxNesting+1; depth++ {
		r.readText(v)
		for node := range v.nodes {
			if node.ReadAll() {
				r.grown = true
			}
		}
		v = v.elements
	}
}

// readText enters that it makes a difference which text a value is, if it is one.
func (r *reads) readText(v *value) {
	for node := range v.nodes {
		r.readTextOf(node)
	}
	for node := range v.shown {
		r.readTextOf(node)
	}
}

func (r *reads) readTextOf(node *paths.Tree) {
	if node.ReadText() {
		r.grown = true
	}
}

// show enters that a value is put into a text, and returns that text.
func (r *reads) show(v *value) *value {
	r.readAll(v.elements)
	out := &value{other: true}
	for node := range v.nodes {
		if node.Show() {
			r.grown = true
		}
	}
	addAll(&out.shown, v.nodes)
	addAll(&out.shown, v.shown)
	return out
}
