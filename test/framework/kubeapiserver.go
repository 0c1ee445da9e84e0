package framework

import (
	"context"
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
	port, err := FreePort()
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
