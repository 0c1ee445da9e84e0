package framework

import (
	"context"
	"encoding/base64"
	"encoding/json"
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
	serviceHost     = "policy-apiserver.policy-system.svc"
)

// Server is a policy-apiserver behind the control plane, with the rights that
// artifacts/deploy gives it.
type Server struct {
	cp         *ControlPlane
	binary     string
	kubeconfig string
	port       int
	cert, key  string
	process    *process
	direct     *http.Client
}

// InstallServer builds policy-apiserver, applies the manifests it needs besides
// the StatefulSet, and registers the APIService.
func (cp *ControlPlane) InstallServer(ctx context.Context) (*Server, error) {
	s := &Server{cp: cp}
	var err error
	if s.binary, err = buildServer(ctx, cp.Dir); err != nil {
		return nil, err
	}
	deploy := filepath.Join(repository(), "artifacts", "deploy")
	for _, name := range []string{"namespace", "serviceaccount", "auth-reader", "auth-delegator", "auditor-clusterrole", "auditor-clusterrolebinding", "viewer-clusterrole", "cluster-viewer-clusterrole"} {
		if _, err := cp.Kubectl("", "apply", "-f", filepath.Join(deploy, "base", name+".yaml")); err != nil {
			return nil, err
		}
	}
	if _, err := cp.Kubectl("", "apply", "-k", filepath.Join(deploy, "constrainttemplate-crd")); err != nil {
		return nil, err
	}
	if _, err := cp.Kubectl("", "wait", "--for=condition=Established", "crd/constrainttemplates.templates.gatekeeper.sh"); err != nil {
		return nil, err
	}
	token, err := cp.Kubectl("", "create", "token", "policy-apiserver", "-n", systemNamespace, "--duration=24h")
	if err != nil {
		return nil, err
	}
	if _, s.kubeconfig, err = cp.kubeconfig("policy-apiserver", &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}); err != nil {
		return nil, err
	}
	if s.cert, s.key, err = cp.ca.issue("policy-apiserver", serviceHost, nil, []string{serviceHost, "127.0.0.1"}); err != nil {
		return nil, err
	}
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	return s, s.register()
}

// register makes the Service and the APIService. The Service names this host,
// where in a cluster it selects the Pod.
func (s *Server) register() error {
	ca, err := os.ReadFile(s.cp.ca.file())
	if err != nil {
		return err
	}
	_, err = s.cp.Kubectl(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: policy-apiserver, namespace: policy-system}
spec:
  type: ExternalName
  externalName: localhost
  ports: [{name: https, port: %d}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.policy.example.io}
spec:
  group: policy.example.io
  version: v1alpha1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {name: policy-apiserver, namespace: policy-system, port: %d}
  caBundle: %s
`, s.port, s.port, base64.StdEncoding.EncodeToString(ca)), "apply", "-f", "-")
	return err
}

// Start starts the server and waits until it is reachable through the
// kube-apiserver.
func (s *Server) Start(args ...string) error {
	var err error
	args = append([]string{
		"--source=cluster", "--kubeconfig=" + s.kubeconfig,
		"--data-dir=" + filepath.Join(s.cp.Dir, "data"),
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(s.port),
		"--tls-cert-file=" + s.cert, "--tls-private-key-file=" + s.key,
	}, args...)
	if s.process, err = s.cp.run("policy-apiserver", s.binary, args...); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(s.cp.Admin)
	if err != nil {
		return err
	}
	return s.process.waitFor("policy-apiserver", time.Minute, func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/apis/policy.example.io/v1alpha1/auditresults").Do(context.Background()).Error()
	})
}

// Stop ends the server with a signal.
func (s *Server) Stop(signal syscall.Signal) { s.process.stop(signal) }

// Log returns the end of the server's log.
func (s *Server) Log() string { return s.process.tail() }

// PID of the server.
func (s *Server) PID() int { return s.process.cmd.Process.Pid }

// Metric returns the sum of the samples of a metric whose name and labels begin
// with prefix.
func (s *Server) Metric(prefix string) (float64, error) {
	config := rest.CopyConfig(s.cp.Admin)
	config.Host = "https://127.0.0.1:" + strconv.Itoa(s.port)
	if s.direct == nil {
		var err error
		if s.direct, err = rest.HTTPClientFor(config); err != nil {
			return 0, err
		}
	}
	response, err := s.direct.Get(config.Host + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("metrics: %s", response.Status)
	}
	sum := 0.0
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.HasPrefix(fields[0], prefix) {
			value, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, err
			}
			sum += value
		}
	}
	return sum, nil
}

// EtcdState returns the number of keys and the revision of etcd.
func (cp *ControlPlane) EtcdState() (keys, revision int64, err error) {
	body := `{"key":"AA==","range_end":"AA==","count_only":true}`
	response, err := http.Post(cp.etcdURL+"/v3/kv/range", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
		Count string `json:"count"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, 0, err
	}
	if keys, err = strconv.ParseInt(answer.Count, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("etcd count: %w", err)
	}
	if revision, err = strconv.ParseInt(answer.Header.Revision, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("etcd revision: %w", err)
	}
	return keys, revision, nil
}
