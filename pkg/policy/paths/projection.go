package paths

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Projection reduces documents to what a Tree reads. It is immutable.
type Projection struct {
	whole bool
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
	p := &Projection{}
	if t == nil {
		return p
	}
	if t.whole {
		p.whole = true
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
// does not modify it.
func (p *Projection) Project(document any) any {
	if p.whole {
		return document
	}
	switch v := document.(type) {
	case map[string]any:
		return p.projectObject(v)
	case []any:
		if p.each == nil {
			return []any{}
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = p.each.Project(v[i])
		}
		return out
	}
	return document
}

func (p *Projection) projectObject(v map[string]any) map[string]any {
	out := make(map[string]any, len(p.fields))
	if p.each != nil {
		for name, value := range v {
			out[name] = p.each.Project(value)
		}
	}
	for _, f := range p.fields {
		if value, ok := v[f.name]; ok {
			out[f.name] = f.sub.Project(value)
		}
	}
	return out
}

// Tags of values in a key. An object is closed with its end, an array has its length
// in front.
const (
	tagNull   = 'n'
	tagFalse  = 'f'
	tagTrue   = 't'
	tagInt    = 'i'
	tagFloat  = 'd'
	tagString = 's'
	tagArray  = 'a'
	tagObject = 'o'
	tagField  = '.'
	tagEnd    = 'e'
	tagOther  = '?'
)

// AppendKey appends the key of a document to dst: an encoding of its projection.
func (p *Projection) AppendKey(dst []byte, document any) []byte {
	switch v := document.(type) {
	case nil:
		return append(dst, tagNull)
	case bool:
		if v {
			return append(dst, tagTrue)
		}
		return append(dst, tagFalse)
	case string:
		return appendString(append(dst, tagString), v)
	case int64:
		return binary.BigEndian.AppendUint64(append(dst, tagInt), uint64(v))
	case float64:
		return binary.BigEndian.AppendUint64(append(dst, tagFloat), math.Float64bits(v))
	case []any:
		sub := p.elements()
		if sub == nil {
			v = nil
		}
		dst = binary.AppendUvarint(append(dst, tagArray), uint64(len(v)))
		for i := range v {
			dst = sub.AppendKey(dst, v[i])
		}
		return dst
	case map[string]any:
		return append(p.appendObject(append(dst, tagObject), v), tagEnd)
	}
	return appendOther(dst, document)
}

// whole is the projection of every part of a value that is read as a whole.
var whole = &Projection{whole: true}

func (p *Projection) elements() *Projection {
	if p.whole {
		return whole
	}
	return p.each
}

func (p *Projection) appendObject(dst []byte, v map[string]any) []byte {
	if !p.whole && p.each == nil {
		for _, f := range p.fields {
			if value, ok := v[f.name]; ok {
				dst = f.sub.AppendKey(appendString(append(dst, tagField), f.name), value)
			}
		}
		return dst
	}
	for _, name := range sortedNames(v) {
		dst = p.fieldProjection(name).AppendKey(appendString(append(dst, tagField), name), v[name])
	}
	return dst
}

func sortedNames(v map[string]any) []string {
	return slices.Sorted(maps.Keys(v))
}

// fieldProjection is for a field of an object of which all fields are kept.
func (p *Projection) fieldProjection(name string) *Projection {
	if p.whole {
		return whole
	}
	i, ok := slices.BinarySearchFunc(p.fields, name, func(f field, name string) int { return cmp.Compare(f.name, name) })
	if ok {
		return p.fields[i].sub
	}
	return p.each
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendOther appends a value that documents do not have, by its JSON.
func appendOther(dst []byte, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		data = fmt.Append(nil, v)
	}
	return appendString(append(dst, tagOther), fmt.Sprintf("%T %s", v, data))
}
