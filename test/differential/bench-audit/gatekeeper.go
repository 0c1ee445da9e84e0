package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"policy.example.io/policy-apiserver/test/framework"
)

// gatekeeperManifests are what Gatekeeper's manager needs of its installation.
const gatekeeperManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: gatekeeper-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: gatekeeper-admin, namespace: gatekeeper-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: gatekeeper-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: gatekeeper-admin, namespace: gatekeeper-system}]
---
apiVersion: v1
kind: Pod
metadata: {name: gatekeeper-audit, namespace: gatekeeper-system}
spec: {serviceAccountName: gatekeeper-admin, automountServiceAccountToken: false, containers: [{name: manager, image: gatekeeper}]}
`

// gatekeeper is Gatekeeper's manager, with the flags of its audit Deployment.
type gatekeeper struct {
	*cluster
	matchKindOnly bool

	cmd   *exec.Cmd
	ended chan struct{}
	log   string
}

func (g *gatekeeper) name() string {
	if g.matchKindOnly {
		return "Gatekeeper, audit-match-kind-only"
	}
	return "Gatekeeper"
}

// kubeconfigFor returns the path of a kubeconfig that leads to a proxy.
func kubeconfigFor(dir, url, token string) (string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["proxy"] = &clientcmdapi.Cluster{Server: url, InsecureSkipTLSVerify: true}
	config.AuthInfos["proxy"] = &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}
	config.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy", AuthInfo: "proxy"}
	config.CurrentContext = "proxy"
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

func (g *gatekeeper) start(_ context.Context, p *proxy) (int, error) {
	dir, err := os.MkdirTemp(g.Dir, "gatekeeper-")
	if err != nil {
		return 0, err
	}
	kubeconfig, err := kubeconfigFor(dir, p.URL, g.token)
	if err != nil {
		return 0, err
	}
	cache := filepath.Join(dir, "cache")
	if err := os.Mkdir(cache, 0o755); err != nil {
		return 0, err
	}
	certs, err := g.certificates(dir)
	if err != nil {
		return 0, err
	}
	health, err := framework.FreePort()
	if err != nil {
		return 0, err
	}
	g.log = filepath.Join(dir, "log")
	out, err := os.Create(g.log)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	g.cmd = exec.Command(g.gatekeeper,
		"--kubeconfig="+kubeconfig, "--operation=audit", "--operation=status", "--operation=generate",
		"--disable-cert-rotation", "--cert-dir="+certs, "--metrics-addr=0", fmt.Sprintf("--health-addr=127.0.0.1:%d", health),
		"--disable-opa-builtin={http.send}", "--log-level=INFO", "--api-cache-dir="+cache,
		fmt.Sprintf("--audit-match-kind-only=%v", g.matchKindOnly))
	g.cmd.Env = append(os.Environ(), "POD_NAMESPACE=gatekeeper-system", "POD_NAME=gatekeeper-audit", "CONTAINER_NAME=manager")
	g.cmd.Dir = dir
	g.cmd.Stdout, g.cmd.Stderr = out, out
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		return 0, err
	}
	g.ended = make(chan struct{})
	go func() {
		_ = g.cmd.Wait() // why it ended is in its log
		close(g.ended)
	}()
	return g.cmd.Process.Pid, nil
}

// certificates are for providers of external data; there are none, but the manager wants
// to be able to talk to some.
func (g *gatekeeper) certificates(dir string) (string, error) {
	certs := filepath.Join(dir, "certs")
	if err := os.Mkdir(certs, 0o755); err != nil {
		return "", err
	}
	for name, from := range map[string]string{"tls.crt": g.server.Cert, "tls.key": g.server.Key, "ca.crt": g.server.Cert} {
		data, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(certs, name), data, 0o600); err != nil {
			return "", err
		}
	}
	return certs, nil
}

func (g *gatekeeper) stop() {
	_ = g.cmd.Process.Kill() // it may have ended
	<-g.ended
}

// span of an audit.
type span struct{ begin, end time.Time }

// audits are those that the log tells of.
func (g *gatekeeper) audits() ([]span, error) {
	data, err := os.ReadFile(g.log)
	if err != nil {
		return nil, err
	}
	var all []span
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var entry struct {
			Time    float64 `json:"ts"`
			Message string  `json:"msg"`
			Error   string  `json:"error"`
		}
		if json.Unmarshal(lines.Bytes(), &entry) != nil {
			continue // not of the manager
		}
		at := time.UnixMicro(int64(entry.Time * 1e6))
		switch {
		case entry.Message == "auditing constraints and violations":
			all = append(all, span{begin: at})
		case entry.Message == "audit manager audit() failed":
			return nil, fmt.Errorf("%s: %s", entry.Message, entry.Error)
		case entry.Message == "auditing is complete" && len(all) > 0:
			all[len(all)-1].end = at
		}
	}
	return all, lines.Err()
}

func (g *gatekeeper) complete(ctx context.Context) (time.Duration, error) {
	for {
		audits, err := g.audits()
		if err != nil {
			return 0, err
		}
		if len(audits) > 0 && !audits[0].end.IsZero() {
			return audits[0].end.Sub(audits[0].begin), nil
		}
		select {
		case <-g.ended:
			return 0, fmt.Errorf("it has ended; see %s", g.log)
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// delays: a change is seen at the end of the first audit that begins after it.
func (g *gatekeeper) delays(context.Context) ([]time.Duration, error) {
	audits, err := g.audits()
	if err != nil {
		return nil, err
	}
	var out []time.Duration
	for _, at := range g.probes {
		for _, a := range audits {
			if a.begin.After(at) && !a.end.IsZero() {
				out = append(out, a.end.Sub(at))
				break
			}
		}
	}
	return out, nil
}
