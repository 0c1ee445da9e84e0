package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"policy.example.io/policy-apiserver/test/framework"
)

// TestExportAndEvents restarts the server with the two, and looks at what it writes.
func TestExportAndEvents(t *testing.T) {
	events := filepath.Join(framework.DeployDir(), "events")
	kubectl(t, "apply", "-f", filepath.Join(events, "events-clusterrole.yaml"), "-f", filepath.Join(events, "events-clusterrolebinding.yaml"))
	remove(t, "clusterrole/policy-apiserver-events", "clusterrolebinding/policy-apiserver-events")
	apply(t, template("E2EExport"), namespace("e2e-export"))
	remove(t, "constrainttemplate/e2eexport", "namespace/e2e-export")
	apply(t, constraint("E2EExport", "export", "ConfigMap", "e2e-export", "owner"), configMap("e2e-export", "old", ""))
	found(t, 20*time.Second, "e2e-export", "export", "ConfigMap/old")
	settled(t)

	file := filepath.Join(t.TempDir(), "findings.jsonl")
	server.Stop(syscall.SIGTERM)
	if err := server.Start("--events", "--export="+file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop(syscall.SIGTERM)
		if err := server.Start(); err != nil {
			t.Error(err)
		}
	})
	// lines are those of the constraint, without the time.
	lines := func() (out []string) {
		in, err := os.Open(file)
		if err != nil {
			return []string{err.Error()}
		}
		defer in.Close()
		scanner := bufio.NewScanner(in)
		for scanner.Scan() {
			var record struct{ EventType, Group, Kind, Name, Message, EnforcementAction, ResourceKind, ResourceNamespace, ResourceName string }
			if err := json.Unmarshal(scanner.Bytes(), &record); err != nil {
				return []string{err.Error()}
			}
			if record.Name == "export" || record.EventType == "" {
				out = append(out, strings.TrimSpace(fmt.Sprintln(record.EventType, record.Message, record.ResourceKind, record.ResourceNamespace, record.ResourceName)))
			}
		}
		return out
	}
	wantLines := func(what string, want ...string) {
		t.Helper()
		eventually(t, 20*time.Second, what, func() error { return expect(strings.Join(lines(), "\n"), strings.Join(want, "\n"), nil) })
	}
	old := "violation_audited label owner is missing ConfigMap e2e-export old"
	want := []string{"audit is started", old, "audit is completed"}
	wantLines("all findings", want...)
	apply(t, configMap("e2e-export", "new", ""))
	want = append(want, "violation_audited label owner is missing ConfigMap e2e-export new")
	wantLines("a finding that opens", want...)
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "delete", "configmap", "new", "-n", "e2e-export")
	wantLines("a finding that is resolved, after the file was rotated", "violation_resolved label owner is missing ConfigMap e2e-export new")

	eventually(t, 20*time.Second, "Event", func() error {
		out, err := cp.Kubectl("", "get", "events", "-n", "e2e-export", "--field-selector=reason=PolicyViolation",
			"-o", `jsonpath={range .items[*]}{.type} {.involvedObject.kind}/{.involvedObject.name}: {.message}{"\n"}{end}`)
		got := strings.Split(strings.TrimSpace(out), "\n")
		slices.Sort(got)
		return expect(strings.Join(got, "\n"), "Warning ConfigMap/new: E2EExport/export (deny): label owner is missing", err)
	})
}
