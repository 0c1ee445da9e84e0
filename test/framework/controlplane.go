package framework

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ControlPlane is a running control plane.
type ControlPlane struct {
	// Dir has all files, logs among them.
	Dir      string
	Binaries *Binaries
	// Admin is the configuration of a member of system:masters, without limits.
	Admin *rest.Config
	// AdminKubeconfig is the path of its kubeconfig.
	AdminKubeconfig string

	url     string
	etcdURL string
	// ca signs users and servers.
	ca *authority
	// identity is what all kube-apiservers have in common: flags.
	identity []string
	// processes in the order in which they were started.
	processes []*process
}

// StartControlPlane starts a control plane whose files are in a folder.
func StartControlPlane(ctx context.Context, dir string) (*ControlPlane, error) {
	cp, err := StartWithoutControllers(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := cp.startControllerManager(); err != nil {
		cp.Stop()
		return nil, err
	}
	return cp, nil
}

// StartWithoutControllers starts etcd and kube-apiserver only, which have nothing to
// do then but what they are asked for.
func StartWithoutControllers(ctx context.Context, dir string) (*ControlPlane, error) {
	binaries, err := BuildControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{Dir: dir, Binaries: binaries}
	for _, step := range []func() error{cp.startEtcd, cp.startAPIServer} {
		if err := step(); err != nil {
			cp.Stop()
			return nil, err
		}
	}
	return cp, nil
}

// PID returns the id of a process by the name of its program, 0 if there is none.
func (cp *ControlPlane) PID(name string) int {
	for _, p := range cp.processes {
		if filepath.Base(p.cmd.Path) == name {
			return p.cmd.Process.Pid
		}
	}
	return 0
}

// Restart kills a process by the name of its program and starts it again, with the same
// arguments. It waits until the kube-apiserver is ready.
func (cp *ControlPlane) Restart(name string) error {
	for i, p := range cp.processes {
		if filepath.Base(p.cmd.Path) != name {
			continue
		}
		p.stop(syscall.SIGKILL)
		again, err := start(p.log, p.cmd.Path, p.cmd.Args[1:]...)
		if err != nil {
			return fmt.Errorf("start %s again: %w", name, err)
		}
		cp.processes[i] = again
		client, err := kubernetes.NewForConfig(cp.Admin)
		if err != nil {
			return err
		}
		return again.waitFor(name, time.Minute, func() error {
			return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
		})
	}
	return fmt.Errorf("there is no process of %s", name)
}

// Stop stops all that was started, in reverse order.
func (cp *ControlPlane) Stop() {
	for i := len(cp.processes) - 1; i >= 0; i-- {
		cp.processes[i].stop(syscall.SIGTERM)
	}
}

func (cp *ControlPlane) run(name, path string, args ...string) (*process, error) {
	p, err := start(filepath.Join(cp.Dir, name+".log"), path, args...)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cp.processes = append(cp.processes, p)
	return p, nil
}

func (cp *ControlPlane) startEtcd() error {
	client, err := FreePort()
	if err != nil {
		return err
	}
	peer, err := FreePort()
	if err != nil {
		return err
	}
	cp.etcdURL = "http://127.0.0.1:" + strconv.Itoa(client)
	peerURL := "http://127.0.0.1:" + strconv.Itoa(peer)
	_, err = cp.run("etcd", cp.Binaries.Etcd,
		"--data-dir="+filepath.Join(cp.Dir, "etcd"),
		"--listen-client-urls="+cp.etcdURL, "--advertise-client-urls="+cp.etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=default="+peerURL, "--unsafe-no-fsync", "--quota-backend-bytes=8589934592")
	return err
}

func (cp *ControlPlane) startAPIServer() error {
	if err := cp.makeCertificates(); err != nil {
		return err
	}
	first, err := cp.AddAPIServer("kube-apiserver")
	if err != nil {
		return err
	}
	cp.url, cp.Admin, cp.AdminKubeconfig = first.url, first.Admin, first.AdminKubeconfig
	return nil
}

func (cp *ControlPlane) startControllerManager() error {
	_, err := cp.run("kube-controller-manager", cp.Binaries.KubeControllerManager,
		"--kubeconfig="+cp.AdminKubeconfig, "--leader-elect=false",
		"--controllers=namespace-controller,garbage-collector-controller,serviceaccount-controller,clusterrole-aggregation-controller",
		"--secure-port=0")
	return err
}

// User returns the configuration of a user and the path of its kubeconfig.
func (cp *ControlPlane) User(name string, groups ...string) (*rest.Config, string, error) {
	file := strings.NewReplacer(":", "-", "/", "-").Replace(name)
	cert, key, err := cp.ca.issue("user-"+file, name, groups, nil)
	if err != nil {
		return nil, "", err
	}
	return cp.kubeconfig(cp.url, file, &clientcmdapi.AuthInfo{ClientCertificate: cert, ClientKey: key})
}

// kubeconfig writes a kubeconfig for a URL that leads to the kube-apiserver.
func (cp *ControlPlane) kubeconfig(url, name string, auth *clientcmdapi.AuthInfo) (*rest.Config, string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: url, CertificateAuthority: cp.ca.file()}
	config.AuthInfos["test"] = auth
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(cp.Dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return nil, "", err
	}
	client, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, "", err
	}
	client.QPS = -1
	return client, path, nil
}

// kubectlTimeout is more than any command of a test may take.
const kubectlTimeout = 2 * time.Minute

// Kubectl runs kubectl as the administrator.
func (cp *ControlPlane) Kubectl(stdin string, args ...string) (string, error) {
	return cp.KubectlAs(cp.AdminKubeconfig, stdin, args...)
}

// KubectlAs runs kubectl with a kubeconfig. The error has what it wrote to
// standard error.
func (cp *ControlPlane) KubectlAs(kubeconfig, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), kubectlTimeout)
	defer cancel()
	cmd := cp.Command(ctx, kubeconfig, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// Command returns a kubectl command that the caller runs. It is killed when ctx is
// done, or with the test.
func (cp *ControlPlane) Command(ctx context.Context, kubeconfig string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cp.Binaries.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+cp.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}
