package rego

import (
	"strings"
	"testing"
)

// TestSelfContained has equalities that would make a set that contains itself, and such
// that look like it.
func TestSelfContained(t *testing.T) {
	for body, refused := range map[string]bool{
		`x = {x}`:                               true,
		`{x} = x`:                               true,
		`x = [{x}]`:                             true,
		`x = {"a": {x}}`:                        true,
		`x = {y}; y = x`:                        true,
		`x = {y}; y = {x}`:                      true,
		`x = {y}; z = [y]; y = x`:               true,
		`x = {y}; y = z; z = x`:                 true,
		`x = {y}; z = [x]; y = z`:               true,
		`[x, y] = [{y}, x]`:                     true,
		`{"a": x, "b": y} = {"a": {y}, "b": x}`: true,
		`[1 | x = {x}]`:                         true,
		`not f(1); x = {x}`:                     true,

		`y = 1; x = {y}`:                       false,
		`y = 1; x = {y}; z = {x}`:              false,
		`y = 1; x = {y}; x = {y}`:              false,
		`y = 1; x = {y}; x = {1}`:              false,
		`y = 1; x = {y}; y = x[_]`:             false,
		`y = 1; x = {y}; z = x; z = {1}`:       false,
		`x = [y]; y = 1`:                       false,
		`[x, y] = [{1}, 2]`:                    false,
		`x = {1}; count({z | x = {1}; z = x})`: false,
		`x = {1}; y = {x | x = 2}`:             false,
	} {
		got := outcome(t, Source{Rego: "package t\nf(x) { x == 2 }\nviolation[{\"msg\": \"x\"}] { " + body + " }"})
		// OPA finds many of them itself: nothing gives the variables a value.
		if is := strings.Contains(got, "contains it in a set") || strings.Contains(got, "rego_unsafe_var_error"); is != refused {
			t.Errorf("%s is refused: %v, want %v (%s)", body, is, refused, got)
		}
	}
}
