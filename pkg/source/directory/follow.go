package directory

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
)

// Run follows changes of the folder until ctx is done. It must not be called twice.
func (s *Source) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	f := &follower{source: s, logger: logger, watched: sets.New[string]()}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		logger.Error(err, "Changes of the folder are seen late", "path", s.path, "interval", s.rescan)
	} else {
		defer watcher.Close()
		f.watcher = watcher
	}
	s.scanMu.Lock()
	s.scanner.watchDir = f.watch
	s.scanMu.Unlock()
	f.run(ctx)
	return nil
}

// follower scans the folder when the file system tells of a change, and at times.
type follower struct {
	source  *Source
	logger  klog.Logger
	watcher *fsnotify.Watcher // nil if the file system does not tell
	watched sets.Set[string]  // real paths of folders
	warned  bool              // that a folder could not be watched
}

func (f *follower) run(ctx context.Context) {
	var events chan fsnotify.Event
	var errs chan error
	if f.watcher != nil {
		events, errs = f.watcher.Events, f.watcher.Errors
	}
	timer := time.NewTimer(0) // what changed since New was not watched
	defer timer.Stop()
	due := time.Now()
	soon := func() {
		if at := time.Now().Add(coalesce); at.Before(due) {
			due = at
			timer.Reset(coalesce)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			if f.concerns(event) {
				soon()
			}
		case err := <-errs:
			// Most likely events were lost because there were too many.
			f.logger.V(2).Info("Watching the folder", "path", f.source.path, "err", err)
			soon()
		case <-timer.C:
			f.scan()
			due = time.Now().Add(f.source.rescan)
			timer.Reset(f.source.rescan)
		}
	}
}

// concerns is false for events next to the folder, whose parent is watched only to
// see it go, come back or be replaced.
func (f *follower) concerns(event fsnotify.Event) bool {
	return event.Name == f.source.path || f.watched.Has(filepath.Dir(event.Name)) || f.watched.Has(event.Name)
}

// scan looks through the folder and corrects what is watched.
func (f *follower) scan() {
	parent := filepath.Dir(f.source.path)
	f.watch(parent)
	result, err := f.source.update()
	if err != nil {
		f.logger.Error(err, "Reading the folder did not work, trying again later", "path", f.source.path)
		return
	}
	if f.watcher == nil {
		return
	}
	for dir := range f.watched.Difference(result.dirs) {
		if dir != parent {
			_ = f.watcher.Remove(dir) // it is gone, and its watch with it
		}
	}
	f.watched = result.dirs
}

// watch is called before a folder is read, so that no change is missed between the
// two. It is called anew each time: a folder may have been replaced by another one.
func (f *follower) watch(dir string) {
	if f.watcher == nil {
		return
	}
	if err := f.watcher.Add(dir); err != nil && !f.warned {
		f.warned = true
		f.logger.Error(err, "Changes of some folders are seen late", "folder", dir, "interval", f.source.rescan)
	}
}
