package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// document is one document of a file as JSON, or what is wrong with it.
type document struct {
	number int // counted from 1
	line   int // on which the document begins, counted from 1
	json   []byte
	err    error
}

// place names the document within its file.
func (d document) place() string {
	return fmt.Sprintf("document %d (line %d)", d.number, d.line)
}

var (
	// byteOrderMark may precede UTF-8 text.
	byteOrderMark = []byte("\xef\xbb\xbf")

	errNotText = errors.New("is not UTF-8 text; remove the file or store it as UTF-8")
)

// documents splits the content of a file. A document that is wrong does not affect
// the others, except that nothing is found behind it if no marker ends it. The error
// says that the content is no text at all.
func documents(data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, errNotText
	}
	// A text within JSON may look like a marker, so JSON is not split if it need not be.
	if docs, rest, _ := jsonDocuments(1, 1, data); skip(rest, false) == len(rest) {
		return docs, nil
	}
	return markedDocuments(data), nil
}

// jsonDocuments reads the JSON objects that a text begins with, and returns what is
// left and the line where that begins. Comments may be between them. YAML has JSON
// in it, but not with tabs and not several objects in a row, and reads it much
// slower.
func jsonDocuments(number, line int, text []byte) (docs []document, rest []byte, restLine int) {
	for {
		start := skip(text, false)
		if start == len(text) || text[start] != '{' {
			return docs, text, line
		}
		var raw json.RawMessage
		decoder := json.NewDecoder(bytes.NewReader(text[start:]))
		if err := decoder.Decode(&raw); err != nil {
			return docs, text, line // the parser of YAML says what is wrong
		}
		end := start + int(decoder.InputOffset())
		docs = append(docs, document{number: number + len(docs), line: line + breaks(text[:start]), json: raw})
		line += breaks(text[:end])
		text = text[end:]
	}
}

// markedDocuments splits at the markers "---" and "...", which end a document
// wherever they begin a line, and converts each part. Parts without content do not
// count.
func markedDocuments(data []byte) []document {
	var docs []document
	var start, startLine int // of the part
	flush := func(end int, directives bool) {
		text := data[start:end]
		if skip(text, directives) == len(text) {
			return
		}
		found, rest, line := jsonDocuments(len(docs)+1, startLine, text)
		docs = append(docs, found...)
		if content := skip(rest, directives); content < len(rest) {
			docs = append(docs, yamlDocument(len(docs)+1, line+breaks(rest[:content]), line, rest))
		}
	}
	startLine = 1
	for pos, line := 0, 1; pos < len(data); line++ {
		at, size := nextBreak(data[pos:])
		end := pos + at + size
		switch text := data[pos:end]; {
		case isMarker(text, "---"):
			flush(pos, true)
			start, startLine = pos+len("---"), line // the document may begin right here
		case isMarker(text, "..."):
			flush(pos, false)
			start, startLine = end, line+1
		}
		pos = end
	}
	flush(len(data), false)
	return docs
}

// isMarker is true if a line consists of the marker, or begins with it and a blank.
func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || isBlank(rest[0]) || breakSize(rest) > 0)
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// skip returns where the content of a text begins: behind blanks, line breaks,
// comments and, if there may be any, directives.
func skip(text []byte, directives bool) int {
	lineStart := true
	for pos := 0; pos < len(text); {
		c, size := text[pos], breakSize(text[pos:])
		switch {
		case size > 0:
			pos += size
		case isBlank(c):
			pos++
		case c == '#', c == '%' && lineStart && directives:
			at, _ := nextBreak(text[pos:])
			pos += at
		default:
			return pos
		}
		lineStart = size > 0
	}
	return len(text)
}

// breakSize returns the size of the line break that a text begins with, 0 without
// one. Line breaks are those of YAML 1.1, as the parser has them: whoever knows
// fewer takes for a comment what is none.
func breakSize(text []byte) int {
	switch text[0] {
	case '\n':
		return 1
	case '\r':
		if bytes.HasPrefix(text, []byte("\r\n")) {
			return 2
		}
		return 1
	case 0xc2, 0xe2:
		for _, special := range []string{"\u0085", "\u2028", "\u2029"} {
			if bytes.HasPrefix(text, []byte(special)) {
				return len(special)
			}
		}
	}
	return 0
}

// nextBreak returns where the first line break of a text is, and its size, which is
// 0 at the end of the text.
func nextBreak(text []byte) (at, size int) {
	for i := range text {
		if size := breakSize(text[i:]); size > 0 {
			return i, size
		}
	}
	return len(text), 0
}

// breaks counts the line breaks in a text.
func breaks(text []byte) int {
	for n := 0; ; n++ {
		at, size := nextBreak(text)
		if size == 0 {
			return n
		}
		text = text[at+size:]
	}
}

var yamlErrorPrefix = regexp.MustCompile(`^(error converting YAML to JSON: )?(yaml: )?(unmarshal errors:\s*)?`)

// yamlDocument converts one document, whose text begins on textLine and whose
// content on line. Like kubectl it does not accept a key twice.
func yamlDocument(number, line, textLine int, text []byte) document {
	doc := document{number: number, line: line}
	if doc.json, doc.err = convert(text); doc.err != nil {
		// Converted again for an error that counts lines from the start of the file.
		if _, err := convert(append(bytes.Repeat([]byte("\n"), textLine-1), text...)); err != nil {
			doc.err = err
		}
		message := strings.Join(strings.Fields(yamlErrorPrefix.ReplaceAllString(doc.err.Error(), "")), " ")
		doc.err = fmt.Errorf("is not valid YAML or JSON: %s; correct it", message)
		if bytes.Contains(text, []byte("{{")) {
			doc.err = fmt.Errorf("%w, or render it first if it is a template", doc.err)
		}
	}
	return doc
}

// convert converts a text that is one document. Unlike the library it does not take
// the first document for all of the text.
func convert(text []byte) ([]byte, error) {
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil || converted[0] == '{' && beginsWithKey(text) {
		return converted, err
	}
	// The parser counts lines from 0 in the error about what follows.
	reader := io.MultiReader(strings.NewReader("\n"), bytes.NewReader(bytes.TrimPrefix(text, byteOrderMark)))
	decoder := goyaml.NewDecoder(reader)
	var value any
	if err := decoder.Decode(&value); err != nil { // it must not be used after an error
		return nil, err
	}
	const follows = "something follows the end of the document without a line --- between"
	switch err := decoder.Decode(&value); {
	case errors.Is(err, io.EOF):
		return converted, nil
	case err != nil:
		return nil, errors.New(strings.Replace(err.Error(), "did not find expected <document start>", follows, 1))
	default:
		return nil, errors.New(follows)
	}
}

// beginsWithKey is true if a text begins with a key that is not indented. It is a
// mapping then, which nothing but a marker ends.
func beginsWithKey(text []byte) bool {
	pos := skip(text, false)
	if pos == len(text) || pos > 0 && text[pos-1] != '\n' {
		return false
	}
	c := text[pos] | 0x20
	return c >= 'a' && c <= 'z'
}
