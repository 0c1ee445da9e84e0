package directory

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"policy.example.io/policy-apiserver/pkg/source"
)

const (
	// maxProblems is how many problems an inventory has: more than anybody corrects at
	// once, and no more than a run has room for.
	maxProblems = 100
	// maxMessage is the size of a problem's message in bytes. Some quote what is wrong.
	maxMessage = 1 << 10
)

// limit returns the problems to list, of which there are more besides. The last one
// says how many are left out.
func limit(problems []source.Problem, more int) []source.Problem {
	if len(problems)+more <= maxProblems {
		return problems
	}
	n := min(len(problems), maxProblems-1)
	more += len(problems) - n
	last := source.Problem{Subject: "all files", Message: fmt.Sprintf("have %d more problems, which are not listed; correct the listed ones first", more)}
	return append(slices.Clone(problems[:n]), last)
}

// shorten leaves out the middle of a message that is too long: it begins with the
// place and ends with what to do.
func shorten(message string) string {
	const gap, tail = " ... ", 200
	if len(message) <= maxMessage {
		return message
	}
	end, resume := maxMessage-tail-len(gap), len(message)-tail
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	for resume < len(message) && !utf8.RuneStart(message[resume]) {
		resume++
	}
	return message[:end] + gap + message[resume:]
}
