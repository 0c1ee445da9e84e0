package framework

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Standalone is a policy-apiserver that audits a directory, without a cluster.
type Standalone struct {
	// Kubeconfig that it has written.
	Kubeconfig string

	process *process
}

// StartStandalone starts a server that audits a directory. Its files are in a
// folder of the caller's: the index in data, its log and its kubeconfig.
func (s *Server) StartStandalone(manifests, dir string) (*Standalone, error) {
	sa := &Standalone{Kubeconfig: filepath.Join(dir, "kubeconfig")}
	var err error
	sa.process, err = start(filepath.Join(dir, "log"), s.Binary,
		"--source=dir:"+manifests, "--data-dir="+filepath.Join(dir, "data"),
		"--secure-port=0", "--write-kubeconfig="+sa.Kubeconfig)
	if err != nil {
		return nil, err
	}
	err = sa.process.waitFor("policy-apiserver of a directory", 30*time.Second, func() error {
		_, err := os.Stat(sa.Kubeconfig)
		return err
	})
	if err != nil {
		sa.Stop()
		return nil, err
	}
	return sa, nil
}

// Stop ends the server and waits until it is gone.
func (sa *Standalone) Stop() { sa.process.stop(syscall.SIGTERM) }

// Refused runs the server with flags that it cannot start with, and returns what
// it says about them.
func (s *Server) Refused(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return string(out), fmt.Errorf("policy-apiserver %v keeps running", args)
	case err == nil:
		return string(out), fmt.Errorf("policy-apiserver %v has ended without an error", args)
	}
	return string(out), nil
}
