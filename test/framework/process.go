package framework

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a server that was started for a test. It leads a process group of its
// own and dies with the test, however that ends.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// start runs a command whose output goes to the end of a file.
func start(log, path string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

// stop sends a signal to the process group and waits until the process is gone. It
// may be called again.
func (p *process) stop(signal syscall.Signal) {
	if p == nil {
		return
	}
	select {
	case <-p.done:
		return // the id may be that of another process by now
	default:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, signal)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// tail returns the end of the log.
func (p *process) tail() string {
	text := readLog(p.log)
	return text[max(0, len(text)-4000):]
}

// readLog returns a log, or why it cannot be read.
func readLog(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// waitFor waits until check returns nil, or the process ends.
func (p *process) waitFor(what string, timeout time.Duration, check func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %w\n%s", what, err, p.tail())
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not get ready: %w\n%s", what, err, p.tail())
		}
	}
}

// freePort returns a port of 127.0.0.1 that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
