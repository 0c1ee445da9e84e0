package rego

import (
	"strconv"
	"strings"
)

// Placeholder returns what the nth text that is only shown can be replaced by in what is
// evaluated. No policy and no object has it in its texts, because it cannot be guessed.
func (p *Program) Placeholder(n int) string {
	return p.placeholder + strconv.Itoa(n) + placeholderEnd
}

const placeholderEnd = "}"

// Show returns a message with the nth of some texts in place of the nth placeholder.
func (p *Program) Show(message string, texts []string) string {
	before, rest, found := strings.Cut(message, p.placeholder)
	if !found {
		return message
	}
	var out strings.Builder
	for found {
		out.WriteString(before)
		number, after, _ := strings.Cut(rest, placeholderEnd)
		if n, err := strconv.Atoi(number); err == nil && n < len(texts) {
			out.WriteString(texts[n])
		}
		before, rest, found = strings.Cut(after, p.placeholder)
	}
	out.WriteString(before)
	return out.String()
}
