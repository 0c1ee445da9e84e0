package framework

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
)

// Beside is another policy-apiserver over the same cluster, with an index of its own. The
// aggregation layer does not know it.
type Beside struct {
	// Client asks it as the administrator.
	Client *versioned.Clientset

	server *Server
	dir    string
	args   []string
}

// StartBeside starts another server with a kubeconfig. Its files are in a folder.
func (s *Server) StartBeside(dir, kubeconfig string, args ...string) (*Beside, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(s.cp.Admin)
	config.Host = "https://127.0.0.1:" + strconv.Itoa(port)
	config.CAFile, config.CAData, config.Insecure = "", nil, true
	b := &Beside{
		server: &Server{Binary: s.Binary, cp: s.cp, port: port},
		dir:    dir,
		args: append([]string{
			"--source=cluster", "--kubeconfig=" + kubeconfig, "--data-dir=" + filepath.Join(dir, "data"),
			"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		}, args...),
	}
	if b.Client, err = versioned.NewForConfig(config); err != nil {
		return nil, err
	}
	return b, b.Start()
}

// Start starts the server, again after Stop.
func (b *Beside) Start() error {
	var err error
	if b.server.process, err = start(filepath.Join(b.dir, "log"), b.server.Binary, b.args...); err != nil {
		return err
	}
	err = b.server.process.waitFor("policy-apiserver beside the other", time.Minute, func() error {
		_, err := b.server.Metric("process_start_time_seconds")
		return err
	})
	if err != nil {
		b.Stop()
	}
	return err
}

// Stop ends the server and waits until it is gone.
func (b *Beside) Stop() { b.server.process.stop(syscall.SIGTERM) }

// Signal sends the server a signal.
func (b *Beside) Signal(signal syscall.Signal) error {
	return b.server.process.cmd.Process.Signal(signal)
}

// Metric is Server.Metric.
func (b *Beside) Metric(prefix string) (float64, error) { return b.server.Metric(prefix) }

// Log returns what the server has logged.
func (b *Beside) Log() (string, error) {
	data, err := os.ReadFile(filepath.Join(b.dir, "log"))
	return string(data), err
}
