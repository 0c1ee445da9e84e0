package e2e

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// TestDirectory audits a directory with files that are wrong in one way each, without
// a cluster and with the kubeconfig that the server writes.
func TestDirectory(t *testing.T) {
	manifests, dir := t.TempDir(), t.TempDir()
	write := func(name string, texts ...string) {
		t.Helper()
		path := filepath.Join(manifests, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Join(texts, "\n---\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("policy.yaml", template("Dir"), constraint("Dir", "dir", "ConfigMap", "shop", "owner"))
	write("a/shop.yaml", configMap("shop", "bad", ""), configMap("shop", "good", "owner: me"))
	write("a/half.yaml", configMap("shop", "whole", ""), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: half, namespace: [")
	write("noversion.yaml", "kind: ConfigMap\nmetadata: {name: x, namespace: shop}\n")
	write("binary.yaml", "\x00\x01")

	standalone, err := server.StartStandalone(manifests, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer standalone.Stop()
	if info, err := os.Stat(standalone.Kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info, err)
	}
	get := func(args ...string) (string, error) {
		return cp.KubectlAs(standalone.Kubeconfig, "", append([]string{"get"}, args...)...)
	}
	names := func(want string) func() error {
		return func() error {
			got, err := get("ar", "-A", "-o", "jsonpath={.items[*].resource.name}")
			return expect(got, want, err)
		}
	}
	eventually(t, 20*time.Second, "findings", names("bad whole"))
	problems, err := get("auditruns", "-o", `jsonpath={range .items[*]}{.phase}{range .problems[*]}{"\n"}{.subject}: {.message}{end}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{
		{"Partial"},
		{"a/half.yaml", "document 2"},
		{"noversion.yaml", "has no apiVersion", "add it"},
		{"binary.yaml", "is not UTF-8 text"},
	} {
		ok := false
		for line := range strings.Lines(problems) {
			all := true
			for _, part := range want {
				all = all && strings.Contains(line, part)
			}
			ok = ok || all
		}
		if !ok {
			t.Errorf("no line of\n%s\nsays %q", problems, want)
		}
	}
	if n := strings.Count(problems, "\n"); n != 3 {
		t.Errorf("%d problems, want 3:\n%s", n, problems)
	}

	write("a/shop.yaml", configMap("shop", "bad", "owner: me"))
	eventually(t, visible, "the finding goes", names("whole"))
	write("a/half.yaml", configMap("shop", "whole", ""), configMap("shop", "half", ""))
	eventually(t, visible, "the file is mended", names("half whole"))

	// What another process has, or a newer version has written, is left alone.
	data := filepath.Join(dir, "data")
	refused := func(want ...string) {
		t.Helper()
		out, err := server.Refused("--source=dir:"+manifests, "--data-dir="+data, "--secure-port=0")
		if err != nil {
			t.Error(err)
		}
		for _, want := range want {
			if !strings.Contains(out, want) {
				t.Errorf("the server does not say %q:\n%s", want, out)
			}
		}
	}
	refused(data, "in use by another process", "--data-dir")
	standalone.Stop()
	makeNewer(t, filepath.Join(data, "index.db"))
	refused(data, "newer version", "--data-dir")
	if left, err := filepath.Glob(filepath.Join(data, "index.db*")); err != nil || len(left) != 1 {
		t.Errorf("files of the index: %v, %v", left, err)
	}
}

// makeNewer gives an index the next version of the format: see docs/index-format.md.
func makeNewer(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		key, meta := []byte("format"), tx.Bucket([]byte("meta"))
		payload := []byte(strings.Replace(string(meta.Get(key)[4:]), `"version":1`, `"version":2`, 1))
		sum := crc32.Checksum(append([]byte("format"), payload...), crc32.MakeTable(crc32.Castagnoli))
		return meta.Put(key, append(binary.BigEndian.AppendUint32(nil, sum), payload...))
	})
	if err != nil {
		t.Fatal(err)
	}
}
