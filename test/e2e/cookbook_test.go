package e2e

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"policy.example.io/policy-apiserver/test/framework"
)

var updateDocs = flag.Bool("update-docs", false, "write the answers into docs/cookbook.md")

// varying is what is another in each run, and what docs/cookbook.md has in its place.
var varying = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`(?m) (\d+[smh])+ *$`), " 0s"}, // AGE
	{regexp.MustCompile(`run-\d{8}-\d{6}\.\d{3}`), "run-20261201-173819.510"},
	{regexp.MustCompile(`(?m) +$`), ""},
}

// TestCookbook runs the lines of docs/cookbook.md, on a server that audits
// artifacts/example as make run does, and compares the answers.
func TestCookbook(t *testing.T) {
	root := filepath.Join(framework.DeployDir(), "..", "..")
	standalone, err := server.StartStandalone(filepath.Join(root, "artifacts", "example"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standalone.Stop)
	ask := func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", line)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "KUBECONFIG="+standalone.Kubeconfig, "HOME="+t.TempDir(), "LC_ALL=C",
			"PATH="+filepath.Dir(cp.Binaries.Kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		text := out.String()
		for _, v := range varying {
			text = v.pattern.ReplaceAllString(text, v.shown)
		}
		return text, err
	}
	eventually(t, 30*time.Second, "the first audit", func() error {
		out, err := ask("kubectl get arun --no-headers -o custom-columns=:.phase")
		return expect(strings.TrimSpace(out), "Complete", err)
	})
	path := filepath.Join(docsDir(), "cookbook.md")
	text := document(t, "cookbook.md")
	questions := 0
	block := regexp.MustCompile("(?s)```console\n\\$ ([^\n]*)\n.*?```\n")
	answered := block.ReplaceAllStringFunc(text, func(old string) string {
		questions++
		line := block.FindStringSubmatch(old)[1]
		out, err := ask(line)
		if err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
		return "```console\n$ " + line + "\n" + out + "```\n"
	})
	if questions < 20 || questions != strings.Count(text, "\n## ") {
		t.Errorf("there are %d questions with an answer", questions)
	}
	if *updateDocs {
		if err := os.WriteFile(path, []byte(answered), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(text, answered); diff != "" {
		t.Errorf("docs/cookbook.md is not up to date, run go test ./test/e2e -run TestCookbook -update-docs (-documented +answered):\n%s", diff)
	}
}
