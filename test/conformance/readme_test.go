package conformance

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"policy.example.io/policy-apiserver/pkg/apiserver"
)

// TestReadme names exactly the fields that each resource can be selected by.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\n| resource | fields |\n| --- | --- |\n")
	if !ok {
		t.Fatal("the README has no table of fields")
	}
	table, _, _ := strings.Cut(after, "\n\n")
	quoted := func(cell string) (out []string) {
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
			out = append(out, match[1])
		}
		return out
	}
	got := map[string][]string{}
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) != 4 {
			t.Fatalf("%d cells in %q", len(cells), row)
		}
		for _, resource := range quoted(cells[1]) {
			got[resource] = quoted(cells[2])
		}
	}
	want := map[string][]string{}
	for _, resource := range apiserver.Resources() {
		for _, field := range resource.Fields {
			want[string(resource.Table)] = append(want[string(resource.Table)], field.Path)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-tables +README):\n%s", diff)
	}
}
