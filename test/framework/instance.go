package framework

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Instance is a policy-apiserver that audits the control plane besides the one that the
// APIService leads to. It is asked directly. Its files are in a folder of its own.
type Instance struct {
	// Config is the administrator's configuration for it.
	Config *rest.Config
	// DataDir has its index.
	DataDir string

	server     *Server
	dir        string
	kubeconfig string
	port       int
	process    *process
}

// NewInstance prepares an instance that reaches the kube-apiserver by a URL, such as that
// of a proxy, or directly if it is empty.
func (s *Server) NewInstance(dir, url string) (*Instance, error) {
	i := &Instance{DataDir: filepath.Join(dir, "data"), server: s, dir: dir, kubeconfig: s.kubeconfig}
	if url != "" {
		config, err := clientcmd.LoadFromFile(s.kubeconfig)
		if err != nil {
			return nil, err
		}
		config.Clusters["test"] = &clientcmdapi.Cluster{Server: url, InsecureSkipTLSVerify: true}
		i.kubeconfig = filepath.Join(dir, "kubeconfig")
		if err := clientcmd.WriteToFile(*config, i.kubeconfig); err != nil {
			return nil, err
		}
	}
	return i, i.listen()
}

// StartInstance starts an instance with a kubeconfig and a certificate that it makes for
// itself. It does not wait for it.
func (s *Server) StartInstance(dir, kubeconfig string, args ...string) (*Instance, error) {
	i := &Instance{DataDir: filepath.Join(dir, "data"), dir: dir, server: s, kubeconfig: kubeconfig}
	if err := i.listen(); err != nil {
		return nil, err
	}
	return i, i.start(args)
}

func (i *Instance) listen() error {
	var err error
	i.port, err = FreePort()
	i.Config = i.server.cp.direct(i.port)
	return err
}

func (i *Instance) start(args []string) error {
	args = append([]string{
		"--source=cluster", "--kubeconfig=" + i.kubeconfig, "--data-dir=" + i.DataDir,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(i.port),
	}, args...)
	var err error
	if i.process, err = start(filepath.Join(i.dir, "log"), i.server.Binary, args...); err != nil {
		return fmt.Errorf("start policy-apiserver: %w", err)
	}
	return nil
}

// Start starts the instance, again after Stop or Kill, and waits until it answers,
// whatever that is.
func (i *Instance) Start(args ...string) error {
	if err := i.start(append([]string{"--tls-cert-file=" + i.server.Cert, "--tls-private-key-file=" + i.server.Key}, args...)); err != nil {
		return err
	}
	return i.WaitReady("/livez", 2*time.Minute)
}

// Kill kills the instance and waits until it is gone.
func (i *Instance) Kill() { i.process.stop(syscall.SIGKILL) }

// PID of the instance.
func (i *Instance) PID() int { return i.process.cmd.Process.Pid }

// LoseData removes the data directory. The instance must not be running.
func (i *Instance) LoseData() error { return os.RemoveAll(i.DataDir) }

// Damage overwrites some bytes at a place of the index, given as a fraction of its size.
// The instance must not be running.
func (i *Instance) Damage(at float64) error {
	f, err := os.OpenFile(filepath.Join(i.DataDir, "index.db"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("damaged by a test"), int64(at*float64(info.Size()-32)))
	return err
}

// Kubeconfig is the path of the server's kubeconfig: a token of its service account.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// Stop ends the server and waits until it is gone.
func (i *Instance) Stop() { i.process.stop(syscall.SIGTERM) }

// Ended tells whether the server has ended by itself.
func (i *Instance) Ended() bool {
	select {
	case <-i.process.done:
		return true
	default:
		return false
	}
}

// WaitReady waits until a path such as /readyz answers with 200.
func (i *Instance) WaitReady(path string, timeout time.Duration) error {
	client, err := kubernetes.NewForConfig(i.Config)
	if err != nil {
		return err
	}
	return i.process.waitFor("policy-apiserver", timeout, func() error {
		return client.Discovery().RESTClient().Get().AbsPath(path).Do(context.Background()).Error()
	})
}

// Log returns what the server has logged.
func (i *Instance) Log() string { return readLog(i.process.log) }

// Metric returns the sum of the samples of a metric whose name and labels begin with
// prefix.
func (i *Instance) Metric(prefix string) (float64, error) { return metric(i.Config, prefix) }
