package app

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/flags.md")

// TestFlagsDocumented has in docs/flags.md what the program says of its flags. With
// -update, as by make generate, it is written.
func TestFlagsDocumented(t *testing.T) {
	const path = "../../../docs/flags.md"
	var want bytes.Buffer
	want.WriteString("# Flags\n\nWhat the program says of them; written by `make generate`.\n")
	for _, args := range [][]string{{"--help"}, {"review", "--help"}} {
		out, err := command(t, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		want.WriteString("\n## policy-apiserver")
		if args[0] != "--help" {
			want.WriteString(" " + args[0])
		}
		want.WriteString("\n\n```\n")
		for line := range bytes.Lines(out) {
			want.Write(append(bytes.TrimRight(line, " \n"), '\n'))
		}
		want.WriteString("```\n")
	}
	if *update {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want.String()); diff != "" {
		t.Errorf("docs/flags.md is not up to date, run make generate (-documented +program):\n%s", diff)
	}
}
