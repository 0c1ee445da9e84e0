package paths

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Key is what documents that look the same to a program have in common: an encoding of
// what the program reads of them. It can be used again after Reset.
type Key struct {
	Bytes []byte
	// Texts are those of the document that are only shown and not in Bytes, in the order
	// in which Project numbers them.
	Texts []string

	names []string // of the objects that are being encoded
}

// Reset makes the key empty. It keeps its memory.
func (k *Key) Reset() { k.Bytes, k.Texts = k.Bytes[:0], k.Texts[:0] }

// Tags of values in a key. An array has its length in front. Of an object of which all
// fields are kept, the names and the number of the fields are in the key; of others,
// the position of the fields in the projection, counted from 1, and 0 at the end.
const (
	tagNull   = 'n'
	tagFalse  = 'f'
	tagTrue   = 't'
	tagInt    = 'i'
	tagFloat  = 'd'
	tagString = 's'
	tagShown  = 'h'
	tagArray  = 'a'
	tagObject = 'o'
	tagOther  = '?'
)

// Append appends what a projection keeps of a document.
func (k *Key) Append(p *Projection, document any) {
	switch v := document.(type) {
	case nil:
		k.tag(tagNull)
	case bool:
		if v {
			k.tag(tagTrue)
		} else {
			k.tag(tagFalse)
		}
	case string:
		if p.text {
			k.tag(tagString)
			k.string(v)
		} else {
			k.tag(tagShown)
			k.Texts = append(k.Texts, v)
		}
	case int64:
		k.tag(tagInt)
		k.Bytes = binary.BigEndian.AppendUint64(k.Bytes, uint64(v))
	case float64:
		k.tag(tagFloat)
		k.Bytes = binary.BigEndian.AppendUint64(k.Bytes, math.Float64bits(v))
	case []any:
		sub := p.elements()
		if sub == nil {
			v = nil
		}
		k.tag(tagArray)
		k.number(len(v))
		for i := range v {
			k.Append(sub, v[i])
		}
	case map[string]any:
		k.tag(tagObject)
		if p.whole || p.each != nil {
			k.allFields(p, v)
		} else {
			k.namedFields(p, v)
		}
	default:
		k.other(v)
	}
}

func (k *Key) namedFields(p *Projection, v map[string]any) {
	for i := range p.fields {
		f := &p.fields[i]
		if value, ok := v[f.name]; ok {
			k.number(i + 1)
			k.Append(f.sub, value)
		}
	}
	k.number(0)
}

func (k *Key) allFields(p *Projection, v map[string]any) {
	k.number(len(v))
	start := len(k.names)
	for name := range v {
		k.names = append(k.names, name)
	}
	end := len(k.names)
	slices.Sort(k.names[start:end])
	for i := start; i < end; i++ {
		name := k.names[i]
		k.string(name)
		k.Append(p.field(name), v[name])
	}
	k.names = k.names[:start]
}

func (k *Key) tag(tag byte) { k.Bytes = append(k.Bytes, tag) }

func (k *Key) number(n int) { k.Bytes = binary.AppendUvarint(k.Bytes, uint64(n)) }

func (k *Key) string(s string) {
	k.number(len(s))
	k.Bytes = append(k.Bytes, s...)
}

// other appends a value that documents do not have, by its JSON.
func (k *Key) other(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		data = fmt.Append(nil, v)
	}
	k.tag(tagOther)
	k.string(fmt.Sprintf("%T %s", v, data))
}
