package paths

import (
	"maps"
	"slices"
	"strings"
)

// Projection reduces documents to what a Tree reads. It is immutable.
type Projection struct {
	// whole and text are those of the Tree.
	whole, text bool
	// fields that are named, sorted by name; what each asks for is in them.
	fields []field
	// each is for all other fields, and for the elements of arrays; nil if there is no
	// need of them.
	each *Projection
}

type field struct {
	name string
	sub  *Projection
}

// NewProjection returns the projection of a tree, which may be changed afterwards.
// nil asks for nothing but the type of the value.
func NewProjection(t *Tree) *Projection {
	if t == nil {
		return &Projection{}
	}
	p := &Projection{whole: t.whole, text: t.text}
	if t.whole {
		return p
	}
	if t.each != nil {
		p.each = NewProjection(t.each)
	}
	for name, sub := range t.fields {
		merged := &Tree{}
		merged.Add(sub)
		merged.Add(t.each)
		p.fields = append(p.fields, field{name, NewProjection(merged)})
	}
	slices.SortFunc(p.fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
	return p
}

// Project returns what is read of a document. It shares parts with the document and
// does not modify it. The nth text, from 0, of those that are only shown is replaced
// by hide(n), unless hide is nil.
func (p *Projection) Project(document any, hide func(n int) string) any {
	pr := &projecting{hide: hide}
	return pr.value(p, document)
}

// projecting is the state of one Project.
type projecting struct {
	hide func(n int) string
	n    int
}

func (pr *projecting) value(p *Projection, document any) any {
	if text, ok := document.(string); ok {
		if p.text || pr.hide == nil {
			return text
		}
		pr.n++
		return pr.hide(pr.n - 1)
	}
	if p.whole {
		return document
	}
	switch v := document.(type) {
	case map[string]any:
		return pr.object(p, v)
	case []any:
		if p.each == nil {
			return []any{}
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = pr.value(p.each, v[i])
		}
		return out
	}
	return document
}

// object goes through the fields in the order in which a key has them.
func (pr *projecting) object(p *Projection, v map[string]any) map[string]any {
	if p.each == nil {
		out := make(map[string]any, len(p.fields))
		for _, f := range p.fields {
			if value, ok := v[f.name]; ok {
				out[f.name] = pr.value(f.sub, value)
			}
		}
		return out
	}
	out := make(map[string]any, len(v))
	for _, name := range slices.Sorted(maps.Keys(v)) {
		out[name] = pr.value(p.field(name), v[name])
	}
	return out
}

// field is the projection of a field of an object of which all fields are kept.
func (p *Projection) field(name string) *Projection {
	if p.whole {
		return whole
	}
	i, ok := slices.BinarySearchFunc(p.fields, name, func(f field, name string) int { return strings.Compare(f.name, name) })
	if ok {
		return p.fields[i].sub
	}
	return p.each
}

// elements is the projection of the elements of an array, nil if they are not kept.
func (p *Projection) elements() *Projection {
	if p.whole {
		return whole
	}
	return p.each
}

// whole is the projection of every part of a value that is read as a whole.
var whole = &Projection{whole: true, text: true}
