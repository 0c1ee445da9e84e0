package framework

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// APIServer is one of the kube-apiservers of a control plane.
type APIServer struct {
	// Admin is the configuration of a member of system:masters, without limits.
	Admin *rest.Config
	// AdminKubeconfig is the path of its kubeconfig.
	AdminKubeconfig string

	url     string
	process *process
}

// makeCertificates makes what all kube-apiservers have in common.
func (cp *ControlPlane) makeCertificates() error {
	var err error
	if cp.ca, err = newAuthority(cp.Dir, "ca"); err != nil {
		return err
	}
	front, err := newAuthority(cp.Dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	proxyCert, proxyKey, err := front.issue("front-proxy-client", "front-proxy-client", nil, nil)
	if err != nil {
		return err
	}
	servingCert, servingKey, err := cp.ca.issue("kube-apiserver", "kube-apiserver", nil, []string{"127.0.0.1", "localhost", "kubernetes.default.svc"})
	if err != nil {
		return err
	}
	cp.identity = []string{
		"--tls-cert-file=" + servingCert, "--tls-private-key-file=" + servingKey,
		"--client-ca-file=" + cp.ca.file(), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + servingCert, "--service-account-signing-key-file=" + servingKey,
		"--service-cluster-ip-range=10.0.0.0/24",
		"--requestheader-client-ca-file=" + front.file(), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + proxyCert, "--proxy-client-key-file=" + proxyKey,
	}
	return nil
}

// AddAPIServer starts a kube-apiserver on the control plane's etcd. Its log is
// NAME.log.
func (cp *ControlPlane) AddAPIServer(name string, args ...string) (*APIServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	a := &APIServer{url: "https://127.0.0.1:" + strconv.Itoa(port)}
	args = append([]string{
		"--etcd-servers=" + cp.etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--endpoint-reconciler-type=none", "--profiling=false",
	}, append(args, cp.identity...)...)
	if a.process, err = cp.run(name, cp.Binaries.KubeAPIServer, args...); err != nil {
		return nil, err
	}
	file := "admin-" + name
	if cp.url == "" {
		file = "admin"
	}
	cert, key, err := cp.ca.issue("user-"+file, "admin", []string{"system:masters"}, nil)
	if err != nil {
		return nil, err
	}
	if a.Admin, a.AdminKubeconfig, err = cp.kubeconfig(a.url, file, &clientcmdapi.AuthInfo{ClientCertificate: cert, ClientKey: key}); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(a.Admin)
	if err != nil {
		return nil, err
	}
	return a, a.process.waitFor(name, time.Minute, func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
	})
}

// Stop stops the kube-apiserver.
func (a *APIServer) Stop() { a.process.stop(syscall.SIGTERM) }

// Instance is a policy-apiserver that audits the control plane besides the one that
// the APIService leads to. It is asked directly.
type Instance struct {
	// Config is the administrator's.
	Config *rest.Config

	process *process
}

// StartInstance starts a server with a kubeconfig. Its index and its log are in dir. It
// does not wait for it.
func (s *Server) StartInstance(dir, kubeconfig string, args ...string) (*Instance, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	i := &Instance{Config: s.cp.direct(port)}
	args = append([]string{
		"--source=cluster", "--kubeconfig=" + kubeconfig, "--data-dir=" + filepath.Join(dir, "data"),
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
	}, args...)
	if i.process, err = start(filepath.Join(dir, "log"), s.Binary, args...); err != nil {
		return nil, fmt.Errorf("start policy-apiserver: %w", err)
	}
	return i, nil
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
