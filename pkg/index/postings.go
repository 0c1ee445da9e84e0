package index

import (
	"hash/maphash"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
)

// maxExactValues is how many values of one field have postings of their own. A
// field with more values, such as names, has its values share hashedPostings
// postings, which hold rows of other values too.
const (
	maxExactValues = 4096
	hashedPostings = 1 << 16
)

// postings tell which rows of a table have a value, by the rows' create revision.
type postings struct {
	schema Schema
	rows   *roaring64.Bitmap
	// namespaces has the rows of each.
	namespaces map[string]*roaring64.Bitmap
	fields     []*valuePostings
	labels     map[string]*valuePostings
	seed       maphash.Seed
}

// valuePostings are the postings of one field or label. Rows in which it is empty
// or absent are not in them.
type valuePostings struct {
	exact  map[string]*roaring64.Bitmap // nil once there are too many values
	hashed map[uint64]*roaring64.Bitmap
}

func newPostings(schema Schema) *postings {
	p := &postings{schema: schema, rows: roaring64.New(), namespaces: map[string]*roaring64.Bitmap{}, labels: map[string]*valuePostings{}, seed: maphash.MakeSeed()}
	for range schema.Fields {
		p.fields = append(p.fields, newValuePostings())
	}
	return p
}

func newValuePostings() *valuePostings {
	return &valuePostings{exact: map[string]*roaring64.Bitmap{}}
}

// change brings the postings from one version of a row to the next; either may be
// nil.
func (p *postings) change(before, after *Row) {
	if before != nil && (after == nil || before.CreateRevision != after.CreateRevision) {
		p.rows.Remove(before.CreateRevision)
		in := p.namespaces[before.Namespace]
		if in.Remove(before.CreateRevision); in.IsEmpty() {
			delete(p.namespaces, before.Namespace)
		}
		p.each(before, p.removeValue)
		before = nil
	}
	if after == nil {
		return
	}
	if before != nil {
		p.each(before, p.removeValue)
	} else {
		in := p.namespaces[after.Namespace]
		if in == nil {
			in = roaring64.New()
			p.namespaces[after.Namespace] = in
		}
		in.Add(after.CreateRevision)
	}
	p.rows.Add(after.CreateRevision)
	p.each(after, p.addValue)
}

// count returns the number of rows in a namespace, or in all if it is empty.
func (p *postings) count(namespace string) int64 {
	if namespace == "" {
		return int64(p.rows.GetCardinality())
	}
	if in := p.namespaces[namespace]; in != nil {
		return int64(in.GetCardinality())
	}
	return 0
}

// each calls fn for each field and label of a row that is not empty.
func (p *postings) each(r *Row, fn func(v *valuePostings, value string, id uint64)) {
	for i, value := range r.Fields {
		if value != "" && i < len(p.fields) {
			fn(p.fields[i], value, r.CreateRevision)
		}
	}
	for label, value := range r.Labels {
		v := p.labels[label]
		if v == nil {
			v = newValuePostings()
			p.labels[label] = v
		}
		fn(v, value, r.CreateRevision)
	}
}

func (p *postings) hash(value string) uint64 {
	return maphash.String(p.seed, value) % hashedPostings
}

func (p *postings) addValue(v *valuePostings, value string, id uint64) {
	if v.exact != nil {
		b := v.exact[value]
		if b == nil {
			b = roaring64.New()
			v.exact[value] = b
		}
		b.Add(id)
		if len(v.exact) <= maxExactValues {
			return
		}
		v.hashed = map[uint64]*roaring64.Bitmap{}
		for value, b := range v.exact {
			v.share(p.hash(value)).Or(b)
		}
		v.exact = nil
		return
	}
	v.share(p.hash(value)).Add(id)
}

func (v *valuePostings) share(hash uint64) *roaring64.Bitmap {
	b := v.hashed[hash]
	if b == nil {
		b = roaring64.New()
		v.hashed[hash] = b
	}
	return b
}

func (p *postings) removeValue(v *valuePostings, value string, id uint64) {
	if v.exact == nil {
		if b := v.hashed[p.hash(value)]; b != nil {
			b.Remove(id)
		}
		return
	}
	if b := v.exact[value]; b != nil {
		b.Remove(id)
		if b.IsEmpty() {
			delete(v.exact, value)
		}
	}
}

// find returns the rows that may satisfy the terms; exact is true if all of them
// do. It returns nil if the postings cannot narrow the rows: a term for an empty
// value, or none at all. The bitmap belongs to the caller.
func (p *postings) find(terms []Term) (found *roaring64.Bitmap, exact bool) {
	exact = true
	for _, term := range terms {
		if term.Value == "" {
			exact = false
			continue
		}
		b, isExact := p.lookup(term)
		exact = exact && isExact
		switch {
		case b == nil:
			return roaring64.New(), true
		case found == nil:
			found = b.Clone()
		default:
			found.And(b)
		}
	}
	return found, exact
}

// lookup returns the posting of a term, nil if no row has the value.
func (p *postings) lookup(term Term) (b *roaring64.Bitmap, exact bool) {
	v := p.labels[term.Label]
	if term.Field != "" {
		v = nil
		for i, field := range p.schema.Fields {
			if field == term.Field {
				v = p.fields[i]
			}
		}
	}
	switch {
	case v == nil:
		return nil, true
	case v.exact != nil:
		return v.exact[term.Value], true
	default:
		return v.hashed[p.hash(term.Value)], false
	}
}

// satisfies tells whether a row satisfies terms. A label that is absent equals
// nothing; a field that is absent is empty.
func (p *postings) satisfies(r *Row, terms []Term) bool {
	for _, term := range terms {
		if term.Field == "" {
			if value, ok := r.Labels[term.Label]; !ok || value != term.Value {
				return false
			}
			continue
		}
		value := ""
		for i, field := range p.schema.Fields {
			if field == term.Field && i < len(r.Fields) {
				value = r.Fields[i]
			}
		}
		if value != term.Value {
			return false
		}
	}
	return true
}
