package index

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// asideInfix is between the name of a damaged file and the time at which it was set
	// aside, in asideLayout.
	asideInfix  = ".damaged-"
	asideLayout = "20060102-150405.000"
	// asideRetention is how long the last file that was set aside is kept, for those who
	// want to know what happened to it.
	asideRetention = 7 * 24 * time.Hour
)

// asideName is where a file is moved that is set aside.
func asideName(path string, now time.Time) string {
	return path + asideInfix + now.UTC().Format(asideLayout)
}

// removeAside removes files that were set aside: all but the last one, and that one too
// when it is old.
func removeAside(path string, now time.Time) error {
	files, err := filepath.Glob(escapeGlob(path+asideInfix) + "*")
	if err != nil {
		return err
	}
	setAside := func(file string) (time.Time, error) {
		return time.Parse(asideLayout, strings.TrimPrefix(file, path+asideInfix))
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		_, err := setAside(file)
		return err != nil // somebody else's
	})
	slices.Sort(files) // by time
	var errs []error
	for i, file := range files {
		if at, err := setAside(file); err == nil && i == len(files)-1 && now.Sub(at) < asideRetention {
			continue
		}
		errs = append(errs, os.Remove(file))
	}
	return errors.Join(errs...)
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

func escapeGlob(path string) string { return globEscaper.Replace(path) }
