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
// the others, except in a stream of JSON, which is lost after it. The error says
// that the content is no text at all.
func documents(data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, errNotText
	}
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		// YAML has JSON in it, but not with tabs, and reads it much slower.
		if docs, ok := jsonDocuments(data); ok {
			return docs, nil
		}
	}
	return yamlDocuments(data), nil
}

// jsonDocuments reads a sequence of JSON values. It returns false if the content is
// something else.
func jsonDocuments(data []byte) ([]document, bool) {
	var docs []document
	decoder := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		start := decoder.InputOffset()
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs, true
		}
		if err != nil {
			return nil, false
		}
		start += int64(bytes.IndexByte(data[start:], raw[0]))
		docs = append(docs, document{
			number: len(docs) + 1,
			line:   1 + bytes.Count(data[:start], []byte("\n")),
			json:   raw,
		})
	}
}

// yamlDocuments splits at the markers "---" and "...", which end a document wherever
// they begin a line, and converts each part. Documents without content do not count.
func yamlDocuments(data []byte) []document {
	var docs []document
	var start, startLine, contentLine int // contentLine is 0 as long as there is no content
	begin := func(pos, line int) { start, startLine, contentLine = pos, line, 0 }
	flush := func(end int) {
		if contentLine > 0 {
			docs = append(docs, yamlDocument(len(docs)+1, contentLine, startLine, data[start:end]))
		}
	}
	begin(0, 1)
	line := 1
	for pos := 0; pos < len(data); line++ {
		end := len(data)
		if newline := bytes.IndexByte(data[pos:], '\n'); newline >= 0 {
			end = pos + newline + 1
		}
		text := data[pos:end]
		switch {
		case isMarker(text, "---"):
			flush(pos)
			begin(pos+len("---"), line)
			text = text[len("---"):] // the document may begin right here
		case isMarker(text, "..."):
			flush(pos)
			begin(end, line+1)
			text = nil
		}
		if contentLine == 0 && isContent(text) {
			contentLine = line
		}
		pos = end
	}
	flush(len(data))
	return docs
}

// isMarker is true if a line consists of the marker, or begins with it and a blank.
func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// isContent is true if a line has something besides blanks, a comment or a
// directive.
func isContent(line []byte) bool {
	trimmed := bytes.TrimSpace(line)
	return len(trimmed) > 0 && trimmed[0] != '#' && line[0] != '%'
}

var yamlErrorPrefix = regexp.MustCompile(`^(error converting YAML to JSON: )?(yaml: )?(unmarshal errors:\s*)?`)

// yamlDocument converts one document, whose text begins on textLine and whose
// content on line. Like kubectl it does not accept a key twice.
func yamlDocument(number, line, textLine int, text []byte) document {
	doc := document{number: number, line: line}
	if doc.json, doc.err = yaml.YAMLToJSONStrict(text); doc.err != nil {
		// Converted again for an error that counts lines from the start of the file.
		padded := append(bytes.Repeat([]byte("\n"), textLine-1), text...)
		if _, err := yaml.YAMLToJSONStrict(padded); err != nil {
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
