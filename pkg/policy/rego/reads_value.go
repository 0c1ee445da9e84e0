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
	if len(to.nodes)+len(from.nodes) > maxNodes {
		r.opaque = true
		return false
	}
	news := false
	for node := range from.nodes {
		if _, ok := to.nodes[node]; ok {
			continue
		}
		if to.nodes == nil {
			to.nodes = map[*paths.Tree]struct{}{}
		}
		to.nodes[node] = struct{}{}
		news = true
	}
	for s := range from.strings {
		if _, ok := to.strings[s]; ok {
			continue
		}
		if to.strings == nil {
			to.strings = map[string]struct{}{}
		}
		to.strings[s] = struct{}{}
		news = true
	}
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

// readAll enters that a value is read as a whole.
func (r *reads) readAll(v *value) {
	for depth := 0; v != nil && depth <= maxNesting+1; depth++ {
		for node := range v.nodes {
			if node.ReadAll() {
				r.grown = true
			}
		}
		v = v.elements
	}
}
