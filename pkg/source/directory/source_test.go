package directory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/source"
)

// folder writes files into a new folder: pairs of a name and a content.
func folder(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		write(t, dir, files[i], files[i+1])
	}
	return dir
}

// write replaces a file at once, as a careful editor does.
func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *Source {
	t.Helper()
	s, err := New(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rescan looks through the folder once, without Run.
func rescan(t *testing.T, s *Source) {
	t.Helper()
	if _, err := s.update(); err != nil {
		t.Fatal(err)
	}
}

func inventory(t *testing.T, s *Source) *source.Inventory {
	t.Helper()
	inventory, err := s.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inventory
}

// kinds of the source as "group/version Kind resource scope".
func kinds(t *testing.T, s *Source) []string {
	t.Helper()
	var out []string
	for _, k := range inventory(t, s).Kinds {
		scope := "cluster"
		if k.Namespaced {
			scope = "namespaced"
		}
		out = append(out, strings.Join([]string{k.GroupVersion().String(), k.Kind, k.Resource, scope}, " "))
	}
	return out
}

// problems of the source as "subject: message".
func problems(t *testing.T, s *Source) []string {
	t.Helper()
	var out []string
	for _, p := range inventory(t, s).Problems {
		out = append(out, p.Subject+": "+p.Message)
	}
	return out
}

// objects returns what a stream of each kind lists, as "Kind namespace/name".
func objects(t *testing.T, s *Source) []string {
	t.Helper()
	var out []string
	for _, k := range inventory(t, s).Kinds {
		r := newRecorder(t)
		st := stream{kind: k, handler: r}
		snap, _ := s.snapshot()
		st.follow(t.Context(), snap)
		for _, obj := range r.objects {
			out = append(out, fmt.Sprintf("%s %s/%s", obj.GetKind(), obj.GetNamespace(), obj.GetName()))
		}
	}
	slices.Sort(out)
	return out
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// recorder is a handler that writes down its calls.
type recorder struct {
	t       *testing.T
	mu      sync.Mutex
	calls   []string
	objects []*unstructured.Unstructured
	changed chan struct{}
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, changed: make(chan struct{}, 1)}
}

func (r *recorder) record(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call)
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *recorder) ListStarted() { r.record("ListStarted") }

func (r *recorder) Upsert(obj *unstructured.Unstructured) {
	r.objects = append(r.objects, obj)
	r.record("Upsert " + obj.GetName())
}

func (r *recorder) Delete(key source.ObjectKey) { r.record("Delete " + key.Name) }

func (r *recorder) Listed(rv string) {
	if rv == "" {
		r.t.Error("no resource version")
	}
	r.record("Listed")
}

func (r *recorder) Failed(err error) { r.record("Failed: " + err.Error()) }

// next waits for further calls, the last one of which begins with last, and returns
// and forgets them.
func (r *recorder) next(last string) []string {
	r.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		r.mu.Lock()
		if n := len(r.calls); n > 0 && strings.HasPrefix(r.calls[n-1], last) {
			calls := r.calls
			r.calls = nil
			r.mu.Unlock()
			return calls
		}
		calls := slices.Clone(r.calls)
		r.mu.Unlock()
		select {
		case <-r.changed:
		case <-deadline:
			r.t.Fatalf("waiting for %s after %v", last, calls)
		}
	}
}

func manifestOf(apiVersion, kind, namespace, name string) string {
	m := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", apiVersion, kind, name)
	if namespace != "" {
		m += "  namespace: " + namespace + "\n"
	}
	return m
}

func pod(name string) string { return manifestOf("v1", "Pod", "shop", name) }

var podKind = source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true}

func TestKinds(t *testing.T) {
	const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: x}
spec: {group: shop.io, scope: %s, names: {kind: %s, plural: %s}}
`
	s := open(t, folder(t,
		"hpa.yaml", manifestOf("autoscaling/v2beta2", "HorizontalPodAutoscaler", "shop", "a"),
		"sub/hpa.yml", manifestOf("autoscaling/v1", "HorizontalPodAutoscaler", "shop", "b"),
		"sub/deeper/hpa.json", `{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"c"}}`,
		"crds.yaml", fmt.Sprintf(crd, "Namespaced", "Car", "cars")+"---\n"+strings.Replace(fmt.Sprintf(crd, "Cluster", "Fleet", "fleeten"), "name: x", "name: z", 1),
		"custom.yaml", strings.Join([]string{
			manifestOf("shop.io/v1", "Car", "", "unplaced"),
			manifestOf("shop.io/v1", "Fleet", "ignored", "all"),
			manifestOf("other.io/v1", "Policy", "shop", "placed"),
			manifestOf("other.io/v1", "Policy", "", "unplaced"),
			manifestOf("other.io/v1", "Realm", "", "one"),
			manifestOf("constraints.gatekeeper.sh/v1beta1", "K8sRequiredLabels", "", "owner"),
			manifestOf("expansion.gatekeeper.sh/v1alpha1", "ExpansionTemplate", "ignored", "pods"),
			manifestOf("rbac.authorization.k8s.io/v1", "ClusterRole", "", "admin"),
			manifestOf("apps/v1", "Deployment", "", "web"),
			manifestOf("v1", "Event", "shop", "e"),
			manifestOf("policy.example.io/v1alpha1", "AuditResult", "shop", "r"),
		}, "---\n"),
		"ns.yaml", manifestOf("v1", "Namespace", "", "shop"),
		"notes.txt", "no manifest",
		".git/config.yaml", "no: manifest",
		"kustomization.yaml", "resources: []",
	))
	expect(t, "kinds", kinds(t, s),
		"v1 Namespace namespaces cluster",
		"apiextensions.k8s.io/v1 CustomResourceDefinition customresourcedefinitions cluster",
		"apps/v1 Deployment deployments namespaced",
		"autoscaling/v2 HorizontalPodAutoscaler horizontalpodautoscalers namespaced",
		"constraints.gatekeeper.sh/v1beta1 K8sRequiredLabels k8srequiredlabels cluster",
		"expansion.gatekeeper.sh/v1alpha1 ExpansionTemplate expansiontemplate cluster",
		"other.io/v1 Policy policies namespaced",
		"other.io/v1 Realm realms cluster",
		"rbac.authorization.k8s.io/v1 ClusterRole clusterroles cluster",
		"shop.io/v1 Car cars namespaced",
		"shop.io/v1 Fleet fleeten cluster",
		"templates.gatekeeper.sh/v1 ConstraintTemplate constrainttemplates cluster",
	)
	expect(t, "objects", objects(t, s),
		"Car default/unplaced",
		"ClusterRole /admin",
		"CustomResourceDefinition /x",
		"CustomResourceDefinition /z",
		"Deployment default/web",
		"ExpansionTemplate /pods",
		"Fleet /all",
		"HorizontalPodAutoscaler default/c",
		"HorizontalPodAutoscaler shop/a",
		"HorizontalPodAutoscaler shop/b",
		"K8sRequiredLabels /owner",
		"Namespace /default",
		"Namespace /shop",
		"Policy default/unplaced",
		"Policy shop/placed",
		"Realm /one",
	)
	expect(t, "problems", problems(t, s))
}

func TestEmptyFolder(t *testing.T) {
	s := open(t, folder(t))
	expect(t, "kinds", kinds(t, s), "templates.gatekeeper.sh/v1 ConstraintTemplate constrainttemplates cluster")
	r := newRecorder(t)
	st := stream{kind: templateKind, handler: r}
	snap, _ := s.snapshot()
	st.follow(t.Context(), snap)
	expect(t, "calls", r.calls, "ListStarted", "Listed")
}

// What an object is handed over with does not depend on when and how often it was
// read, nor on the way it is written.
func TestMetadata(t *testing.T) {
	list := func(content string) map[string]*unstructured.Unstructured {
		s := open(t, folder(t, "a.yaml", content))
		out := map[string]*unstructured.Unstructured{}
		for _, gk := range []schema.GroupKind{podKind.GroupKind(), namespaceKind} {
			snap, _ := s.snapshot()
			r := newRecorder(t)
			st := stream{kind: source.Kind{GroupVersionKind: gk.WithVersion("v1")}, handler: r}
			st.follow(t.Context(), snap)
			for _, obj := range r.objects {
				out[obj.GetKind()+" "+obj.GetName()] = obj
			}
		}
		return out
	}
	first := list(pod("a") + "---\n" + "apiVersion: v1\nkind: Pod\nmetadata: {name: b, uid: u-1, generation: 7, resourceVersion: '5'}\n")
	again := list("# comment\n{apiVersion: v1, metadata: {namespace: shop, name: a}, kind: Pod}\n---\n" + "apiVersion: v1\nkind: Pod\nmetadata: {name: b, uid: u-1, generation: 7, resourceVersion: '5'}\n")
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
	a, b := first["Pod a"], first["Pod b"]
	if a.GetUID() == "" || a.GetResourceVersion() == "" || a.GetGeneration() != 1 {
		t.Errorf("metadata: %v", a.Object["metadata"])
	}
	if b.GetUID() != "u-1" || b.GetResourceVersion() == "5" || b.GetGeneration() != 7 || b.GetNamespace() != "default" {
		t.Errorf("metadata: %v", b.Object["metadata"])
	}
	if labels := first["Namespace shop"].GetLabels(); labels[nameLabel] != "shop" {
		t.Errorf("labels of a namespace that was made up: %v", labels)
	}
	changed := list(pod("a") + "spec: {}\n")["Pod a"]
	if changed.GetUID() != a.GetUID() || changed.GetResourceVersion() == a.GetResourceVersion() {
		t.Errorf("metadata after a change: %v", changed.Object["metadata"])
	}
	copies := list("apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u-1}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b, uid: u-1}\n")
	if copies["Pod a"].GetUID() != "u-1" || copies["Pod b"].GetUID() == "u-1" {
		t.Error("two objects have the same uid")
	}
}

// A Namespace that is made up is valid whatever its name, so that one of them cannot
// stop the stream of all.
func TestNamespacesOfAnyName(t *testing.T) {
	for _, name := range []string{"shop", `a"b\c`, "<&>", "a\x00\x01\x1b\x7f\n", "\U000e0001", "\u2028\u0085\ufeff", "köln", "${NAMESPACE}"} {
		o := object{manifest: newNamespace(name)}
		o.key.Name = name
		obj, err := o.render()
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if obj.GetName() != name || obj.GetLabels()[nameLabel] != name || obj.GetKind() != "Namespace" || obj.GetAPIVersion() != "v1" {
			t.Errorf("%q: %v", name, obj.Object)
		}
	}
	s := open(t, folder(t, "a.yaml", pod("a")+"---\n"+strings.Replace(pod("b"), "shop", `"\U000e0001"`, 1)+"---\n"+strings.Replace(pod("c"), "shop", `'a"<&>'`, 1)))
	expect(t, "objects", objects(t, s), `Namespace /a"<&>`, "Namespace /shop", `Pod a"<&>/c`, "Pod shop/a")
	expect(t, "problems", problems(t, s), "a.yaml: document 2 (line 7) (Pod) has a wrong metadata.namespace: it contains the invisible character U+E0001; correct it")
}

func TestDuplicates(t *testing.T) {
	s := open(t, folder(t,
		"a/one.yaml", pod("a")+"spec: {nodeName: first}\n",
		"b.yaml", "# two\n---\n"+pod("b")+"---\n"+pod("a"),
	))
	expect(t, "problems", problems(t, s),
		"b.yaml: document 2 (line 9): Pod shop/a is defined in a/one.yaml, document 1 (line 1) already, which is used; remove one of the two")
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a", "Pod shop/b")
}

// Nothing is deleted because it cannot be read.
func TestBrokenFileKeepsObjects(t *testing.T) {
	dir := folder(t, "a.yaml", pod("a")+"---\n"+pod("b"), "c.yaml", pod("c"))
	s := open(t, dir)
	want := []string{"Namespace /shop", "Pod shop/a", "Pod shop/b", "Pod shop/c"}
	expect(t, "objects", objects(t, s), want...)

	write(t, dir, "a.yaml", pod("a")+"---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: [b\n")
	rescan(t, s)
	expect(t, "objects", objects(t, s), want...)
	if p := problems(t, s); len(p) != 1 || !strings.HasPrefix(p[0], "a.yaml: document 2 (line 7) is not valid YAML") ||
		!strings.HasSuffix(p[0], "; 1 object is kept as it was last seen") {
		t.Errorf("problems: %v", p)
	}
	// The kept objects survive further changes and scans of the broken file.
	write(t, dir, "a.yaml", "[")
	rescan(t, s)
	rescan(t, s)
	expect(t, "objects", objects(t, s), want...)
	if p := problems(t, s); len(p) != 1 || !strings.HasSuffix(p[0], "; 2 objects are kept as they were last seen") {
		t.Errorf("problems: %v", p)
	}
	write(t, dir, "a.yaml", pod("a"))
	rescan(t, s)
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a", "Pod shop/c")
	expect(t, "problems", problems(t, s))
	if err := os.Remove(filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	rescan(t, s)
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a")
}

// What follows the first object of a stream of JSON is not taken for gone.
func TestBrokenJSONKeepsObjects(t *testing.T) {
	one := func(name string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"shop","name":"` + name + `"}}` + "\n"
	}
	want := []string{"Namespace /shop", "Pod shop/a", "Pod shop/b", "Pod shop/c"}
	for _, content := range []string{
		strings.TrimSuffix(one("a")+one("b")+one("c"), "}}\n"),
		one("a") + "<<<<<<< HEAD\n" + one("b") + one("c"),
		one("a") + "," + one("b") + "," + one("c"),
		one("a")[:10],
	} {
		dir := folder(t, "d.json", one("a")+one("b")+one("c"))
		s := open(t, dir)
		expect(t, "objects", objects(t, s), want...)
		write(t, dir, "d.json", content)
		rescan(t, s)
		expect(t, content, objects(t, s), want...)
		if p := problems(t, s); len(p) != 1 || !strings.HasPrefix(p[0], "d.json: document ") || !strings.Contains(p[0], "kept as ") {
			t.Errorf("problems of %s: %v", content, p)
		}
	}
}

func TestUnreadable(t *testing.T) {
	dir := folder(t, "big.yaml", pod("a"), "fine.yaml", pod("f"), "sub/b.yaml", pod("b"))
	s, err := New(dir, Options{MaxFileSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "big.yaml", strings.Repeat("# comment\n", 1<<17))
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	rescan(t, s)
	expect(t, "problems", problems(t, s),
		"big.yaml: is larger than 1 MiB, the most that is read; split it; 1 object is kept as it was last seen",
		"link.yaml: cannot follow the symbolic link: no such file or directory; correct or remove it",
		"pipe.yaml: is not a regular file; remove it",
	)
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a", "Pod shop/b", "Pod shop/f")
}

func TestNotPermitted(t *testing.T) {
	if os.Getuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("this user may read everything")
	}
	dir := folder(t, "a.yaml", pod("a"), "sub/b.yaml", pod("b"))
	s := open(t, dir)
	write(t, dir, "a.yaml", pod("a")+"spec: {}\n")
	for _, name := range []string{"a.yaml", "sub"} {
		path := filepath.Join(dir, name)
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.Chmod(path, 0o755) }()
	}
	rescan(t, s)
	expect(t, "problems", problems(t, s),
		"a.yaml: cannot read the file: permission denied; make it readable; 1 object is kept as it was last seen",
		"sub: cannot read the folder: permission denied; make it readable; 1 object is kept as it was last seen",
	)
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a", "Pod shop/b")
}

func TestSymbolicLinks(t *testing.T) {
	outside := folder(t, "o.yaml", pod("outside"))
	dir := folder(t, "z/a.yaml", pod("a"), ".hidden/h.yaml", pod("hidden"), ".hidden/f.yaml", pod("file"))
	for link, target := range map[string]string{
		"loop":      ".",
		"z/up":      "..",
		"again":     "z",
		"copy.yaml": "z/a.yaml",
		"ext":       outside,
		"seen":      ".hidden",
		"f.yaml":    ".hidden/f.yaml",
		"self.yaml": "self.yaml",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a", "Pod shop/file", "Pod shop/hidden", "Pod shop/outside")
	if p := problems(t, s); len(p) != 1 || !strings.HasPrefix(p[0], "self.yaml: cannot follow the symbolic link") {
		t.Errorf("problems: %v", p)
	}
}

// settle makes the files those that were read long after their last change.
func settle(t *testing.T, s *Source, dir string, names ...string) {
	t.Helper()
	long := time.Now().Add(-time.Hour)
	for _, name := range names {
		if err := os.Chtimes(filepath.Join(dir, name), long, long); err != nil {
			t.Fatal(err)
		}
	}
	rescan(t, s)
	for _, name := range names {
		s.scanner.files[name].readAt = time.Now().Add(time.Hour)
	}
	time.Sleep(20 * time.Millisecond) // until the file system's clock has moved on
}

// Only what changed is read again, and a change is seen even if size and
// modification time stay as they are.
func TestScanReadsWhatChanged(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".tmp", []byte(pod("c")), 0o644); err != nil {
				return err
			}
			return os.Rename(path+".tmp", path)
		},
		"written in place": func(path string) error { return os.WriteFile(path, []byte(pod("c")), 0o644) },
		"patched in place": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("c"), int64(strings.Index(pod("a"), "name: a")+len("name: ")))
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, "a.yaml", pod("a"), "b.yaml", pod("b"))
			path := filepath.Join(dir, "a.yaml")
			s := open(t, dir)
			settle(t, s, dir, "a.yaml", "b.yaml")
			before := s.scanner.files
			rescan(t, s)
			for _, name := range []string{"a.yaml", "b.yaml"} {
				if s.scanner.files[name] != before[name] {
					t.Errorf("%s was read again without a change", name)
				}
			}
			old := stat(t, path)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, old.ModTime(), old.ModTime()); err != nil {
				t.Fatal(err)
			}
			if now := stat(t, path); now.Size() != old.Size() || !now.ModTime().Equal(old.ModTime()) {
				t.Fatalf("size or modification time changed: %v, %v", old, now)
			}
			rescan(t, s)
			expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/b", "Pod shop/c")
			if s.scanner.files["b.yaml"] != before["b.yaml"] {
				t.Error("an unchanged file was read again")
			}
		})
	}
}

// A file is not trusted if its last change was just before it was read: the next one
// may have the same times.
func TestScanDoesNotTrustRecentChange(t *testing.T) {
	dir := folder(t, "a.yaml", pod("a"))
	s := open(t, dir)
	settle(t, s, dir, "a.yaml")
	f := s.scanner.files["a.yaml"]
	info := stat(t, filepath.Join(dir, "a.yaml"))
	changed := changeTime(info)
	for _, test := range []struct {
		readAt time.Time
		want   bool
	}{
		{changed.Add(racyWindow + 1), true},
		{changed.Add(racyWindow), false},
		{changed, false},
		{changed.Add(-time.Minute), false}, // the modification time is long ago
		{info.ModTime(), false},
	} {
		if f.readAt = test.readAt; f.unchanged(info) != test.want {
			t.Errorf("read %v after the change: unchanged is not %v", test.readAt.Sub(changed), test.want)
		}
	}
}

// A change of what is no content, like the mode, keeps what was parsed.
func TestScanKeepsWhatWasParsed(t *testing.T) {
	dir := folder(t, "a.yaml", pod("a"))
	s := open(t, dir)
	settle(t, s, dir, "a.yaml")
	before := s.scanner.files["a.yaml"].manifests
	if err := os.Chmod(filepath.Join(dir, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	rescan(t, s)
	if after := s.scanner.files["a.yaml"].manifests; &after[0] != &before[0] {
		t.Error("the same content was parsed again")
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestSingleFile(t *testing.T) {
	dir := folder(t, "all.manifests", pod("a"), "other.yaml", pod("b"))
	s := open(t, filepath.Join(dir, "all.manifests"))
	expect(t, "objects", objects(t, s), "Namespace /shop", "Pod shop/a")
}

func TestNewErrors(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"missing": "no such folder or file; give the path of a folder with manifests",
		"pipe":    "is neither a folder nor a regular file",
	} {
		_, err := New(filepath.Join(dir, name), Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestRun(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "manifests")
	write(t, dir, "a.yaml", pod("a"))
	s := open(t, dir)
	<-s.Changed()
	ctx, cancel := context.WithCancel(t.Context())
	r := newRecorder(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { s.Stream(ctx, podKind, r) })
	defer wg.Wait()
	defer cancel()
	expect(t, "list", r.next("Listed"), "ListStarted", "Upsert a", "Listed")

	write(t, dir, "a.yaml", pod("a")+"spec: {nodeName: n}\n")
	expect(t, "change", r.next("Upsert"), "Upsert a")
	write(t, dir, "new/folder/b.yaml", pod("b"))
	expect(t, "new folder", r.next("Upsert"), "Upsert b")
	write(t, dir, "new/folder/b.yaml", pod("c"))
	expect(t, "rename", r.next("Upsert"), "Delete b", "Upsert c")
	select {
	case <-s.Changed():
		t.Error("changed, but neither kinds nor problems did")
	default:
	}
	write(t, dir, "svc.yaml", manifestOf("v1", "Service", "shop", "s"))
	<-s.Changed()
	write(t, dir, "new/folder/b.yaml", "[")
	<-s.Changed()
	if p := problems(t, s); len(p) != 1 {
		t.Errorf("problems: %v", p)
	}
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(t, "removal", r.next("Delete"), "Delete a") // and c stays

	if err := os.Rename(dir, filepath.Join(parent, "away")); err != nil {
		t.Fatal(err)
	}
	if calls := r.next("Failed"); len(calls) != 1 || !strings.Contains(calls[0], "kept as they were last seen") {
		t.Errorf("calls: %v", calls)
	}
	if p := problems(t, s); !slices.ContainsFunc(p, func(p string) bool { return strings.HasPrefix(p, dir+": cannot read") }) {
		t.Errorf("problems: %v", p)
	}
	if err := os.Rename(filepath.Join(parent, "away"), dir); err != nil {
		t.Fatal(err)
	}
	expect(t, "return", r.next("Listed"), "ListStarted", "Upsert c", "Listed")
	write(t, dir, "d.yaml", pod("d"))
	expect(t, "after the return", r.next("Upsert"), "Upsert d")
}

// An edit in place that restores the modification time is seen at once, not only
// after a restart.
func TestRunSeesEditThatKeepsTime(t *testing.T) {
	dir := folder(t, "a.yaml", pod("a"))
	path := filepath.Join(dir, "a.yaml")
	s := open(t, dir)
	settle(t, s, dir, "a.yaml")
	old := stat(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	r := newRecorder(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { s.Stream(ctx, podKind, r) })
	defer wg.Wait()
	defer cancel()
	expect(t, "list", r.next("Listed"), "ListStarted", "Upsert a", "Listed")
	if err := errors.Join(os.WriteFile(path, []byte(pod("b")), 0o644), os.Chtimes(path, old.ModTime(), old.ModTime())); err != nil {
		t.Fatal(err)
	}
	expect(t, "edit", r.next("Upsert"), "Delete a", "Upsert b")
}

// A mounted ConfigMap changes by the replacement of one symbolic link.
func TestRunFollowsReplacedLink(t *testing.T) {
	dir := folder(t, "..v1/a.yaml", pod("a"), "..v2/a.yaml", pod("b"))
	for link, target := range map[string]string{"..data": "..v1", "a.yaml": "..data/a.yaml"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	r := newRecorder(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	wg.Go(func() { s.Stream(ctx, podKind, r) })
	defer wg.Wait()
	defer cancel()
	expect(t, "list", r.next("Listed"), "ListStarted", "Upsert a", "Listed")
	if err := os.Symlink("..v2", filepath.Join(dir, "..next")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	expect(t, "replacement", r.next("Upsert"), "Delete a", "Upsert b")
}
