package directory

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"policy.example.io/policy-apiserver/pkg/source"
)

func TestProblemsAreLimited(t *testing.T) {
	broken := func(n int) []string {
		var files []string
		for i := range n {
			files = append(files, fmt.Sprintf("%04d.yaml", i), "[")
		}
		return files
	}
	for _, test := range []struct {
		name  string
		files []string
		first string
		more  int
	}{
		{"none more", broken(100), "0000.yaml", 0},
		{"more", broken(101), "0000.yaml", 2},
		{"many files", broken(1000), "0000.yaml", 901},
		{"many documents", []string{"a.yaml", strings.Repeat("---\n[\n", 1000)}, "a.yaml", 901},
		{"many items", []string{"a.yaml", "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- 1\n", 1000)}, "a.yaml", 901},
		{"many duplicates", []string{"a.yaml", strings.Repeat("---\n"+pod("a"), 1001)}, "a.yaml", 901},
		{"documents and files", append(broken(60), "a.yaml", strings.Repeat("---\n"+pod("a"), 61)), "0000.yaml", 21},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, folder(t, test.files...))
			got := inventory(t, s).Problems
			if len(got) != maxProblems || got[0].Subject != test.first {
				t.Errorf("%d problems, the first one of %s", len(got), got[0].Subject)
			}
			want := source.Problem{Subject: "all files", Message: fmt.Sprintf("have %d more problems, which are not listed; correct the listed ones first", test.more)}
			if last := got[len(got)-1]; (last == want) != (test.more > 0) {
				t.Errorf("last problem: %v", last)
			}
		})
	}
}

// A folder that is gone is the first problem, and leaves the others and their number.
func TestProblemsOfFolderThatIsGone(t *testing.T) {
	dir := folder(t, "a.yaml", strings.Repeat("---\n[\n", 150))
	s := open(t, dir)
	before := problems(t, s)
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.update(); err == nil {
			t.Fatal("no error")
		}
		p := problems(t, s)
		if len(p) != 100 || !strings.HasPrefix(p[0], dir+": cannot read") || p[98] != before[97] || !strings.HasPrefix(p[99], "all files: have 52 more problems") {
			t.Fatalf("%d problems: %v ... %v", len(p), p[0], p[len(p)-1])
		}
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	rescan(t, s)
	expect(t, "problems", problems(t, s), before...)
}

func TestMessagesAreLimited(t *testing.T) {
	for _, character := range []string{"x", "é", "€", "\U0001f600"} {
		for shift := range 4 {
			long := strings.Repeat("y", shift) + strings.Repeat(character, 4000)
			s := open(t, folder(t,
				"apiversion.yaml", "apiVersion: "+long+"/b/c\nkind: Pod\n",
				"kind.yaml", "apiVersion: v1\nkind: "+long+"\n",
				"key.yaml", long+": 1\n"+long+": 2\n",
				"label.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {"+long+": 1}}\n",
				"name.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: ["+long+"]}\n",
			))
			got := inventory(t, s).Problems
			if len(got) != 5 {
				t.Errorf("problems: %v", got)
			}
			for _, p := range got {
				if len(p.Message) > maxMessage || !utf8.ValidString(p.Message) || !strings.HasPrefix(p.Message, "document 1 (line 1) ") {
					t.Errorf("%s: %d bytes: %s", p.Subject, len(p.Message), p.Message)
				}
				if p.Subject != "apiversion.yaml" && !strings.HasSuffix(p.Message, "; correct it") && !strings.HasSuffix(p.Message, "; put it in quotes") {
					t.Errorf("%s: does not say what to do: %s", p.Subject, p.Message)
				}
			}
		}
	}
}

// What a message says of kept objects is not cut off.
func TestLimitedMessageSaysWhatIsKept(t *testing.T) {
	dir := folder(t, "a.yaml", pod("a"))
	s := open(t, dir)
	key := strings.Repeat("é", 100_000)
	write(t, dir, "a.yaml", key+": 1\n"+key+": 2\n")
	rescan(t, s)
	p := problems(t, s)
	if len(p) != 1 || !strings.HasSuffix(p[0], "; correct it; 1 object is kept as it was last seen") || len(p[0]) > maxMessage+len("a.yaml: ") {
		t.Errorf("problems: %v", p)
	}
}
