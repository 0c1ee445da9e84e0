package framework

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	systemNamespace = "policy-system"
	// ServiceHost is the name that the server's certificate is for.
	ServiceHost = "policy-apiserver.policy-system.svc"
)

// Server is a policy-apiserver behind the control plane, with the rights that
// artifacts/deploy gives it.
type Server struct {
	// Binary is its path.
	Binary string
	// Cert and Key are the files that it serves with.
	Cert, Key string

	cp         *ControlPlane
	kubeconfig string
	port       int
	process    *process
}

// InstallServer builds policy-apiserver and applies artifacts/deploy/base and the
// definition of ConstraintTemplate. No kubelet runs the StatefulSet, so the Service
// and the APIService are pointed at this host, where Start runs the server.
func (cp *ControlPlane) InstallServer(ctx context.Context) (*Server, error) {
	s := &Server{cp: cp}
	var err error
	if s.Binary, err = buildServer(ctx, cp.Dir); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"apply", "--validate=strict", "-k", filepath.Join(DeployDir(), "base")},
		{"apply", "--validate=strict", "-k", filepath.Join(DeployDir(), "constrainttemplate-crd")},
		{"wait", "--for=condition=Established", "crd/constrainttemplates.templates.gatekeeper.sh"},
	} {
		if _, err := cp.Kubectl("", args...); err != nil {
			return nil, err
		}
	}
	if s.kubeconfig, err = cp.ServiceAccount("policy-apiserver"); err != nil {
		return nil, err
	}
	if s.Cert, s.Key, err = cp.ca.issue("policy-apiserver", ServiceHost, nil, []string{ServiceHost}); err != nil {
		return nil, err
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	return s, s.register()
}

// ServiceAccount returns the path of a kubeconfig with a token of a service account of
// the server's namespace.
func (cp *ControlPlane) ServiceAccount(name string) (string, error) {
	token, err := cp.Kubectl("", "create", "token", name, "-n", systemNamespace, "--duration=24h")
	if err != nil {
		return "", err
	}
	_, path, err := cp.kubeconfig(cp.url, name, &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)})
	return path, err
}

// DeployDir is artifacts/deploy.
func DeployDir() string { return filepath.Join(repository(), "artifacts", "deploy") }

// register has the aggregation layer send requests to this host. It refuses
// endpoints on a loopback address, but resolves an external name to one.
func (s *Server) register() error {
	ca, err := os.ReadFile(s.cp.ca.file())
	if err != nil {
		return err
	}
	service := fmt.Sprintf(`{"spec": {"type": "ExternalName", "externalName": "localhost", "selector": null, "clusterIP": null, "clusterIPs": null,
		"ports": [{"name": "https", "port": %d}]}}`, s.port)
	if _, err := s.cp.Kubectl("", "patch", "service", "policy-apiserver", "-n", systemNamespace, "--type=merge", "-p", service); err != nil {
		return err
	}
	apiService := fmt.Sprintf(`{"spec": {"caBundle": %q, "service": {"port": %d}}}`, base64.StdEncoding.EncodeToString(ca), s.port)
	_, err = s.cp.Kubectl("", "patch", "apiservice", "v1alpha1.policy.example.io", "--type=merge", "-p", apiService)
	return err
}

func (s *Server) args() []string {
	return []string{
		"--source=cluster", "--kubeconfig=" + s.kubeconfig,
		"--data-dir=" + filepath.Join(s.cp.Dir, "data"),
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(s.port),
		"--tls-cert-file=" + s.Cert, "--tls-private-key-file=" + s.Key,
	}
}

// Run runs the program with the server's arguments until it ends by itself.
func (s *Server) Run() error {
	p, err := s.cp.run("policy-apiserver", s.Binary, s.args()...)
	if err != nil {
		return err
	}
	<-p.done
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %s\n%s", s.Binary, p.cmd.ProcessState, p.tail())
	}
	return nil
}

// Start starts the server and waits until it is reachable through the
// kube-apiserver.
func (s *Server) Start(args ...string) error {
	var err error
	args = append(s.args(), args...)
	if s.process, err = s.cp.run("policy-apiserver", s.Binary, args...); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(s.cp.Admin)
	if err != nil {
		return err
	}
	return s.process.waitFor("policy-apiserver", time.Minute, func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/apis/policy.example.io/v1alpha1/auditresults").Param("limit", "1").Do(context.Background()).Error()
	})
}

// Stop ends the server with a signal.
func (s *Server) Stop(signal syscall.Signal) { s.process.stop(signal) }

// Log returns what the server has logged, over all its starts.
func (s *Server) Log() (string, error) {
	data, err := os.ReadFile(s.process.log)
	return string(data), err
}

// Address is where the server listens.
func (s *Server) Address() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// PID of the server.
func (s *Server) PID() int { return s.process.cmd.Process.Pid }

// Direct returns the administrator's configuration for the server itself, past the
// aggregation layer.
func (s *Server) Direct() *rest.Config { return s.cp.direct(s.port) }

func (cp *ControlPlane) direct(port int) *rest.Config {
	config := rest.CopyConfig(cp.Admin)
	config.Host = "https://127.0.0.1:" + strconv.Itoa(port)
	config.CAFile, config.CAData = "", nil
	config.Insecure = true // the certificate is for the Service, and is replaced by a test
	return config
}

// Metrics returns what a server serves at /metrics.
func Metrics(config *rest.Config) (string, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", err
	}
	response, err := client.Get(config.Host + "/metrics")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("metrics: %s", response.Status)
	}
	return string(body), err
}

// Metric returns the sum of the samples of a metric whose name and labels begin
// with prefix. It asks the server itself, past the aggregation layer.
func (s *Server) Metric(prefix string) (float64, error) { return metric(s.Direct(), prefix) }

func metric(config *rest.Config, prefix string) (float64, error) {
	body, err := Metrics(config)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(body) {
		// A value of a label may have spaces; the sample is behind the last one.
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || !strings.HasPrefix(line, prefix) {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}
