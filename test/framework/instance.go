package framework

import (
	"context"
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

// Instance is a further policy-apiserver of the control plane, which is asked directly
// and not through the kube-apiserver. Its files are in a folder of its own.
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
	var err error
	if i.port, err = FreePort(); err != nil {
		return nil, err
	}
	i.Config = rest.CopyConfig(s.cp.Admin)
	i.Config.Host = "https://127.0.0.1:" + strconv.Itoa(i.port)
	i.Config.CAFile, i.Config.CAData, i.Config.Insecure = "", nil, true // the certificate is for the Service
	return i, nil
}

// Start starts the instance and waits until it answers, whatever that is.
func (i *Instance) Start(args ...string) error {
	args = append([]string{
		"--source=cluster", "--kubeconfig=" + i.kubeconfig, "--data-dir=" + i.DataDir,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(i.port),
		"--tls-cert-file=" + i.server.Cert, "--tls-private-key-file=" + i.server.Key,
	}, args...)
	var err error
	if i.process, err = start(filepath.Join(i.dir, "log"), i.server.Binary, args...); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(i.Config)
	if err != nil {
		return err
	}
	return i.process.waitFor("policy-apiserver", 2*time.Minute, func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/livez").Do(context.Background()).Error()
	})
}

// Stop ends the instance with a signal and waits until it is gone.
func (i *Instance) Stop(signal syscall.Signal) { i.process.stop(signal) }

// PID of the instance.
func (i *Instance) PID() int { return i.process.cmd.Process.Pid }

// Log returns the end of what it has logged.
func (i *Instance) Log() string { return i.process.tail() }

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
