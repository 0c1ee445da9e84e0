package directory

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"policy.example.io/policy-apiserver/pkg/source"
)

// racyWindow is how close to the time of reading the last change may be without being
// trusted: a change in the same tick of the file system's clock would leave the times
// as they are.
const racyWindow = 2 * time.Second

// file is what is known of one file.
type file struct {
	name      string // path below the folder, with slashes
	manifests []manifest
	problems  []string

	info   fs.FileInfo // nil if the file must be read again
	readAt time.Time
	sum    [sha256.Size]byte // of the content
}

// scanner reads the folder. It remembers the files, so that only those that changed
// are read again.
type scanner struct {
	root        string // as given
	single      bool   // root is a file
	maxFileSize int64
	// watchDir is called for each folder, by its real path, before it is read. It may
	// be nil.
	watchDir func(dir string)

	files map[string]*file // of the last scan
}

// result of a scan.
type scanResult struct {
	files    []*file // in the order of names
	problems []source.Problem
	dirs     sets.Set[string] // real paths of the folders that the files are in
}

// scan reads what changed. The error says that the folder as a whole cannot be read.
func (s *scanner) scan() (*scanResult, error) {
	w := &walk{
		scanner: s,
		result:  &scanResult{dirs: sets.New[string]()},
		files:   map[string]*file{},
		entered: sets.New[string](),
		seen:    sets.New[string](),
	}
	real, err := filepath.EvalSymlinks(s.root)
	if err != nil {
		return nil, err
	}
	if s.single {
		w.watch(filepath.Dir(real))
		if _, err := os.Stat(real); err != nil {
			return nil, err
		}
		w.file(filepath.Base(s.root), real)
	} else {
		if err := w.dir(".", real); err != nil {
			return nil, err
		}
		w.followLinks()
	}
	s.files = w.files
	for _, f := range w.files {
		w.result.files = append(w.result.files, f)
	}
	slices.SortFunc(w.result.files, func(a, b *file) int { return strings.Compare(a.name, b.name) })
	return w.result, nil
}

// walk is one pass over the folder.
type walk struct {
	*scanner
	result *scanResult
	files  map[string]*file
	links  []string // symbolic links, by name, to be followed
	// Real paths of the folders and files that were read: what is reached in several
	// ways is read once.
	entered, seen sets.Set[string]
}

// watch notes a folder that is read from.
func (w *walk) watch(dir string) {
	w.result.dirs.Insert(dir)
	if w.watchDir != nil {
		w.watchDir(dir)
	}
}

func (w *walk) problem(name, format string, args ...any) {
	w.result.problems = append(w.result.problems, source.Problem{Subject: name, Message: fmt.Sprintf(format, args...)})
}

// dir reads a folder. Symbolic links are left for later, so that what is reached
// both ways is known by its own name.
func (w *walk) dir(name, real string) error {
	if w.entered.Has(real) {
		return nil
	}
	w.entered.Insert(real)
	w.watch(real)
	entries, err := os.ReadDir(real)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		child := path.Join(name, entry.Name())
		childReal := filepath.Join(real, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."):
		case entry.Type()&fs.ModeSymlink != 0:
			w.links = append(w.links, child)
		case entry.IsDir():
			w.subdir(child, childReal)
		case isManifest(child):
			w.file(child, childReal)
		}
	}
	return nil
}

// subdir reads a folder below the root; one that cannot be read is a problem.
func (w *walk) subdir(name, real string) {
	err := w.dir(name, real)
	if err == nil || errors.Is(err, fs.ErrNotExist) { // it was removed since its name was read
		return
	}
	kept := 0
	for fileName, f := range w.scanner.files {
		if strings.HasPrefix(fileName, name+"/") {
			w.files[fileName] = f
			kept += len(f.manifests)
		}
	}
	w.problem(name, "cannot read the folder: %v; make it readable%s", cause(err), keptNote(kept))
}

// followLinks reads what symbolic links lead to and no other way did.
func (w *walk) followLinks() {
	for len(w.links) > 0 {
		name := w.links[0]
		w.links = w.links[1:]
		real, err := filepath.EvalSymlinks(filepath.Join(w.root, filepath.FromSlash(name)))
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(real)
		}
		switch {
		case err != nil && isManifest(name):
			w.unreadable(name, fmt.Errorf("cannot follow the symbolic link: %w; correct or remove it", cause(err)))
		case err != nil:
		case info.IsDir():
			w.subdir(name, real)
		case isManifest(name):
			w.watch(filepath.Dir(real))
			w.file(name, real)
		}
	}
}

// isManifest tells by its name whether a file is read.
func isManifest(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return !isKustomization(name)
	}
	return false
}

// file reads a file, unless it is as it was.
func (w *walk) file(name, real string) {
	if w.seen.Has(real) {
		return
	}
	w.seen.Insert(real)
	last := w.scanner.files[name]
	readAt := time.Now()
	info, err := os.Stat(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		w.unreadable(name, fmt.Errorf("cannot read the file: %w; make it readable", cause(err)))
		return
	case !info.Mode().IsRegular():
		w.unreadable(name, errors.New("is not a regular file; remove it"))
		return
	case last != nil && last.unchanged(info):
		w.files[name] = last
		return
	}
	data, err := readFile(real, w.maxFileSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case errors.Is(err, errTooLarge):
		w.unreadable(name, fmt.Errorf("is larger than %d MiB, the most that is read; split it", w.maxFileSize>>20))
		return
	case err != nil:
		w.unreadable(name, fmt.Errorf("cannot read the file: %w; make it readable", cause(err)))
		return
	}
	sum := sha256.Sum256(data)
	if last != nil && last.info != nil && last.sum == sum {
		same := *last
		same.info, same.readAt = info, readAt
		w.files[name] = &same
		return
	}
	p := parse(data)
	f := &file{name: name, manifests: p.manifests, problems: p.problems, info: info, readAt: readAt, sum: sum}
	if len(p.problems) > 0 && last != nil {
		f.keep(last)
	}
	w.files[name] = f
}

// unchanged is true if the file is the one that was read last. Size and modification
// time alone do not tell: copying and reproducible builds restore them.
func (f *file) unchanged(info fs.FileInfo) bool {
	if f.info == nil || !os.SameFile(f.info, info) || f.info.Size() != info.Size() ||
		!f.info.ModTime().Equal(info.ModTime()) || !changeTime(f.info).Equal(changeTime(info)) {
		return false
	}
	return f.readAt.Sub(info.ModTime()) > racyWindow && f.readAt.Sub(changeTime(info)) > racyWindow
}

// keep adds the objects that the file had and that it does not have any more while
// something in it is wrong: they may well be what is wrong.
func (f *file) keep(last *file) {
	type identity struct{ group, kind, namespace, name string }
	of := func(m *manifest) identity { return identity{m.gvk.Group, m.gvk.Kind, m.namespace, m.name} }
	present := sets.New[identity]()
	for i := range f.manifests {
		present.Insert(of(&f.manifests[i]))
	}
	kept := 0
	for _, m := range last.manifests {
		if !present.Has(of(&m)) {
			f.manifests = append(f.manifests, m)
			kept++
		}
	}
	if kept > 0 {
		f.problems[0] += keptNote(kept)
	}
}

// unreadable records a file of which nothing is known but what it was before.
func (w *walk) unreadable(name string, err error) {
	f := &file{name: name, problems: []string{err.Error()}}
	if last := w.scanner.files[name]; last != nil {
		f.keep(last)
	}
	w.files[name] = f
}

// keptNote says that objects are still there.
func keptNote(objects int) string {
	switch objects {
	case 0:
		return ""
	case 1:
		return "; 1 object is kept as it was last seen"
	default:
		return fmt.Sprintf("; %d objects are kept as they were last seen", objects)
	}
}

var errTooLarge = errors.New("file too large")

// readFile reads a file of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}

// cause strips the path off an error: a problem names it already, and paths outside
// of the folder are nobody's business.
func cause(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
