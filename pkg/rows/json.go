package rows

import (
	"bytes"
	"strconv"

	"policy.example.io/policy-apiserver/pkg/index"
)

// AppendJSON appends the JSON of a row's object with the resourceVersion of a
// revision to dst: what json.Marshal makes of the object that Decode returns. It
// decodes nothing: it puts the resourceVersion into the stored text. If the value
// does not begin as Encode writes it, ok is false and the row has to be decoded.
func AppendJSON(dst []byte, row *index.Row, revision uint64) (out []byte, ok bool) {
	at, first, ok := resourceVersionAt(row.Value)
	if !ok {
		return dst, false
	}
	dst = append(dst, row.Value[:at]...)
	// Between two members, or alone, or behind the last one.
	if !first && row.Value[at] == '}' {
		dst = append(dst, ',')
	}
	dst = append(dst, `"resourceVersion":"`...)
	dst = strconv.AppendUint(dst, revision, 10)
	dst = append(dst, '"')
	if row.Value[at] != '}' {
		dst = append(dst, ',')
	}
	return append(dst, row.Value[at:]...), true
}

// IsVersion tells whether the stored object says that it is of an apiVersion, so
// that AppendJSON makes a whole answer of it, and not only an item of a list.
func IsVersion(row *index.Row, apiVersion string) bool {
	s := scanner{text: row.Value}
	return s.skip(`{"kind":`) && s.skipString() && s.skip(`,"apiVersion":"`) && s.skip(apiVersion) && s.skip(`",`)
}

// beforeResourceVersion are the members of metadata that json.Marshal writes in
// front of resourceVersion.
var beforeResourceVersion = []string{`"name":`, `"generateName":`, `"namespace":`, `"selfLink":`, `"uid":`}

// resourceVersionAt finds the place of metadata.resourceVersion in an object that
// has none; first is true if nothing of metadata is in front of it.
func resourceVersionAt(text []byte) (at int, first, ok bool) {
	s := scanner{text: text}
	if !s.skip("{") {
		return 0, false, false
	}
	for _, member := range []string{`"kind":`, `"apiVersion":`} {
		if s.skip(member) && (!s.skipString() || !s.skip(",")) {
			return 0, false, false
		}
	}
	if !s.skip(`"metadata":{`) {
		return 0, false, false
	}
	first = true
	for _, member := range beforeResourceVersion {
		if !s.skip(member) {
			continue
		}
		if !s.skipString() {
			return 0, false, false
		}
		first = false
		if !s.skip(",") {
			break
		}
	}
	rest := s.text[s.at:]
	ok = bytes.HasPrefix(rest, []byte("}")) || bytes.HasPrefix(rest, []byte(`"`)) && !bytes.HasPrefix(rest, []byte(`"resourceVersion":`))
	return s.at, first, ok
}

// scanner steps through JSON without blanks.
type scanner struct {
	text []byte
	at   int
}

// skip steps over a literal, if it is next.
func (s *scanner) skip(literal string) bool {
	if !bytes.HasPrefix(s.text[s.at:], []byte(literal)) {
		return false
	}
	s.at += len(literal)
	return true
}

// skipString steps over a string without escapes, if one is next.
func (s *scanner) skipString() bool {
	if !s.skip(`"`) {
		return false
	}
	n := bytes.IndexByte(s.text[s.at:], '"')
	if n < 0 || bytes.IndexByte(s.text[s.at:s.at+n], '\\') >= 0 {
		return false
	}
	s.at += n + 1
	return true
}
