//go:build dragonfly || linux || openbsd || solaris

package directory

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime is when a file was last changed in any way, which nobody can set. It is
// zero where the file system does not tell.
func changeTime(info fs.FileInfo) time.Time {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(stat.Ctim.Unix())
	}
	return time.Time{}
}
