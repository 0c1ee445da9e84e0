package index

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sort"
	"strings"
)

// Every value in the file is sealed: four bytes of CRC-32C over its key and
// payload, then the payload. The key is part of the sum so that an entry in the
// wrong place is damage too.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sealSize = 4

func seal(key, payload []byte) []byte {
	out := make([]byte, sealSize, sealSize+len(payload))
	binary.BigEndian.PutUint32(out, crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, payload))
	return append(out, payload...)
}

// unseal returns the payload, which shares memory with sealed.
func unseal(key, sealed []byte) ([]byte, error) {
	if len(sealed) < sealSize {
		return nil, fmt.Errorf("%w: entry %q has no checksum", ErrDamaged, key)
	}
	payload := sealed[sealSize:]
	if binary.BigEndian.Uint32(sealed) != crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, payload) {
		return nil, fmt.Errorf("%w: entry %q has a wrong checksum", ErrDamaged, key)
	}
	return payload, nil
}

func encodeUint64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// encodeKey makes the key of a row in the file: namespace, a zero byte, name.
// Zero sorts before all characters, so the order is that of Key.
func encodeKey(k Key) []byte {
	return []byte(k.Namespace + "\x00" + k.Name)
}

func decodeKey(data []byte) (Key, error) {
	namespace, name, ok := strings.Cut(string(data), "\x00")
	if !ok {
		return Key{}, fmt.Errorf("%w: row key %q", ErrDamaged, data)
	}
	return Key{Namespace: namespace, Name: name}, nil
}

// validKey tells whether a key can be kept.
func validKey(k Key) error {
	if k.Name == "" || strings.Contains(k.Name, "\x00") || strings.Contains(k.Namespace, "\x00") {
		return fmt.Errorf("row key %q/%q: the name must not be empty and neither may contain a zero byte", k.Namespace, k.Name)
	}
	return nil
}

// encodeRow writes everything of a row but its key.
func encodeRow(r *Row) []byte {
	size := 2*8 + 4*binary.MaxVarintLen64 + len(r.Value)
	for _, field := range r.Fields {
		size += len(field) + binary.MaxVarintLen32
	}
	for key, value := range r.Labels {
		size += len(key) + len(value) + 2*binary.MaxVarintLen32
	}
	out := make([]byte, 0, size)
	out = binary.BigEndian.AppendUint64(out, r.Revision)
	out = binary.BigEndian.AppendUint64(out, r.CreateRevision)
	out = binary.AppendUvarint(out, uint64(len(r.Fields)))
	for _, field := range r.Fields {
		out = appendString(out, field)
	}
	keys := make([]string, 0, len(r.Labels))
	for key := range r.Labels {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	out = binary.AppendUvarint(out, uint64(len(keys)))
	for _, key := range keys {
		out = appendString(out, key)
		out = appendString(out, r.Labels[key])
	}
	return append(out, r.Value...)
}

func appendString(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

// decodeRow reads what encodeRow wrote. The row shares nothing with data.
func decodeRow(key Key, data []byte) (*Row, error) {
	return decodeRowParts(key, data, true)
}

// decodeRowParts reads what encodeRow wrote, with the attributes or without.
func decodeRowParts(key Key, data []byte, withAttrs bool) (*Row, error) {
	d := decoder{data: data}
	r := &Row{Key: key, Revision: d.uint64(), CreateRevision: d.uint64()}
	if withAttrs {
		d.attrs(&r.Attrs)
	} else {
		d.skipAttrs()
	}
	if d.failed || r.Revision == 0 || r.CreateRevision == 0 || r.CreateRevision > r.Revision {
		return nil, fmt.Errorf("%w: row %s/%s cannot be decoded", ErrDamaged, key.Namespace, key.Name)
	}
	r.Value = append([]byte{}, d.data...)
	return r, nil
}

func (d *decoder) attrs(a *Attrs) {
	for n := d.count(); n > 0; n-- {
		a.Fields = append(a.Fields, d.string())
	}
	if n := d.count(); n > 0 {
		a.Labels = make(map[string]string, n)
		for ; n > 0; n-- {
			label := d.string()
			a.Labels[label] = d.string()
		}
	}
}

func (d *decoder) skipAttrs() {
	for n := d.count(); n > 0; n-- {
		d.take(d.uvarint())
	}
	for n := 2 * d.count(); n > 0; n-- {
		d.take(d.uvarint())
	}
}

// decoder reads from data until it fails; then it returns zero values.
type decoder struct {
	data   []byte
	failed bool
}

func (d *decoder) take(n uint64) []byte {
	if d.failed || n > uint64(len(d.data)) {
		d.failed = true
		return nil
	}
	out := d.data[:n]
	d.data = d.data[n:]
	return out
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	if d.failed || n <= 0 {
		d.failed = true
		return 0
	}
	d.data = d.data[n:]
	return v
}

// count reads a number of things that take at least a byte each, so that a
// damaged number cannot ask for more memory than the data could fill.
func (d *decoder) count() uint64 {
	n := d.uvarint()
	if n > uint64(len(d.data)) {
		d.failed = true
		return 0
	}
	return n
}

func (d *decoder) string() string { return string(d.take(d.uvarint())) }

// logEntry is one change in the log, by its revision.
type logEntry struct {
	table int // position in Options.Tables
	key   Key
	// previous is the revision of the version that was superseded, 0 if there was
	// none.
	previous uint64
	deleted  bool
	// time of the commit in Unix milliseconds.
	time int64
}

func (e *logEntry) encode() []byte {
	var flags byte
	if e.deleted {
		flags = 1
	}
	out := []byte{byte(e.table), flags}
	out = binary.BigEndian.AppendUint64(out, e.previous)
	out = binary.BigEndian.AppendUint64(out, uint64(e.time))
	return append(out, encodeKey(e.key)...)
}

func decodeLogEntry(data []byte, tables int) (*logEntry, error) {
	d := decoder{data: data}
	e := &logEntry{table: int(d.byte()), deleted: d.byte() == 1, previous: d.uint64(), time: int64(d.uint64())}
	if d.failed || e.table >= tables {
		return nil, fmt.Errorf("%w: log entry cannot be decoded", ErrDamaged)
	}
	var err error
	e.key, err = decodeKey(d.data)
	return e, err
}
