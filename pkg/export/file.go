package export

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// File appends to a file. When the file is renamed or removed, as by logrotate, it goes
// on with a new one of the old name.
type File struct {
	path string

	mu   sync.Mutex // protects file
	file *os.File
}

// OpenFile opens a file, or makes it, readable by its owner only.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	return f, f.open()
}

func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the file to export to: %w", err)
	}
	f.file = file
	return nil
}

// Write implements io.Writer.
func (f *File) Write(text []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil && !f.current() {
		err := f.file.Close()
		f.file = nil
		if err != nil {
			return 0, err
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	return f.file.Write(text)
}

// current tells whether the open file is still the one of the name.
func (f *File) current() bool {
	open, err := f.file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.path)
	return err == nil && os.SameFile(open, named)
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	if err := file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the file to export to: %w", err)
	}
	return nil
}
