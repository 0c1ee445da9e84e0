package app

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// asServer makes the test binary the server, so that the tests see exit codes,
// signals and what is printed.
const asServer = "POLICY_APISERVER_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) == "" {
		os.Exit(m.Run())
	}
	cmd, err := NewCommand()
	if err != nil {
		panic(err)
	}
	os.Exit(Run(cmd, os.Args[1:]))
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asServer+"=1", "KUBERNETES_SERVICE_HOST=", "KUBERNETES_SERVICE_PORT=")
	return cmd
}

// TestRefusals starts the server with what cannot work: it says what is wrong,
// where, and what to do, and exits with 1.
func TestRefusals(t *testing.T) {
	locked, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	indextest.MustOpen(t, rows.Schemas(), func(o *index.Options) { o.Dir = locked })
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := "--source=dir:" + t.TempDir()
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"locked":                 {[]string{dir, "--data-dir=" + locked}, []string{locked, "in use by another process", "another --data-dir"}},
		"data dir is a file":     {[]string{dir, "--data-dir=" + file}, []string{file, "cannot be written", "make it writable"}},
		"no such folder":         {[]string{"--source=dir:/does/not/exist", "--data-dir=" + t.TempDir()}, []string{"/does/not/exist", "no such folder"}},
		"no path":                {[]string{"--source=dir:", "--data-dir=" + t.TempDir()}, []string{"needs a path"}},
		"unknown source":         {[]string{"--source=etcd"}, []string{"--source=etcd", "dir:PATH"}},
		"no cluster":             {[]string{"--data-dir=" + t.TempDir()}, []string{"--kubeconfig", "--source=dir:PATH"}},
		"kubeconfig for a dir":   {[]string{dir, "--kubeconfig=x"}, []string{"--kubeconfig", "--source=cluster"}},
		"kubeconfig of cluster":  {[]string{"--write-kubeconfig=x"}, []string{"--write-kubeconfig", "--source=dir"}},
		"narrowing":              {[]string{dir, "--scoped-views-narrowing=abac"}, []string{"--scoped-views-narrowing=abac", "rbac"}},
		"negative":               {[]string{dir, "--history-window=-1s", "--audit-workers=-1", "--resolved-retention=0s", "--sweep-interval=-1s"}, []string{"--history-window=-1s", "--audit-workers=-1", "--resolved-retention=0s", "--sweep-interval=-1s"}},
		"events for a dir":       {[]string{dir, "--events"}, []string{"--events", "--source=cluster"}},
		"export to nowhere":      {[]string{dir, "--data-dir=" + t.TempDir(), "--secure-port=0", "--export=/does/not/exist/e"}, []string{"--export", "/does/not/exist/e"}},
		"quota":                  {[]string{dir, "--index-quota=-1Gi"}, []string{"--index-quota=-1Gi", "0 means no limit"}},
		"no requests":            {[]string{dir, "--kube-api-qps=0", "--kube-api-burst=0"}, []string{"--kube-api-qps=0", "--kube-api-burst=0"}},
		"port out of range":      {[]string{dir, "--secure-port=99999"}, []string{"--secure-port=99999", "0 picks a port that is free"}},
		"enforcement":            {[]string{dir, "--enforcement=on"}, []string{"--enforcement=on", "webhook"}},
		"enforcement port":       {[]string{dir, "--enforcement-port=-1"}, []string{"--enforcement-port=-1", "0 picks a port that is free"}},
		"exempt namespaces":      {[]string{dir, "--enforcement-exempt-namespaces=a,b*c"}, []string{"--enforcement-exempt-namespaces", "b*c"}},
		"client names":           {[]string{dir, "--enforcement-client-names=x"}, []string{"--enforcement-client-names", "--enforcement-client-ca-file"}},
		"kubeconfig to nowhere":  {[]string{dir, "--data-dir=" + t.TempDir(), "--secure-port=0", "--write-kubeconfig=/does/not/exist/k"}, []string{"--write-kubeconfig", "/does/not/exist/k"}},
		"address of another one": {[]string{dir, "--data-dir=" + t.TempDir(), "--secure-port=0", "--bind-address=192.0.2.1"}, []string{"192.0.2.1", "--bind-address"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := command(t, test.args...).CombinedOutput()
			if code := exitCode(err); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			for _, want := range test.want {
				if !bytes.Contains(out, []byte(want)) {
					t.Errorf("the output does not say %q", want)
				}
			}
			if n := bytes.Count(out, []byte("\nE")) + bytes.Count(out[:1], []byte("E")); n != 1 || bytes.Contains(out, []byte("goroutine ")) {
				t.Errorf("%d errors, want one message", n)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// TestHelp lists each flag once, and says what it does here.
func TestHelp(t *testing.T) {
	out, err := command(t, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	usage := map[string][]string{}
	for _, flag := range regexp.MustCompile(`(?m)^  (?:-\w, |    )--([\w-]+)(.*)$`).FindAllStringSubmatch(string(out), -1) {
		usage[flag[1]] = append(usage[flag[1]], flag[2])
	}
	for name, texts := range usage {
		if len(texts) != 1 {
			t.Errorf("--%s is listed %d times", name, len(texts))
		}
	}
	for name, want := range map[string]string{
		"source":              "dir:PATH",
		"secure-port":         "0 picks one that is free",
		"v":                   "verbosity",
		"vmodule":             "pattern=N",
		"log-flush-frequency": "seconds between log flushes",
		"help":                "help for policy-apiserver",
	} {
		if got := strings.Join(usage[name], ""); !strings.Contains(got, want) {
			t.Errorf("--%s: got %q, want it to say %q", name, got, want)
		}
	}
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // os/exec does not wrap it
		return exit.ExitCode()
	}
	return -1
}

// serve starts the server on a directory. It returns, when the server is ready,
// the configuration of a client and a function that ends the server.
func serve(t *testing.T, manifests, data string) (config *rest.Config, end func()) {
	t.Helper()
	kubeconfig := filepath.Join(data, "kubeconfig")
	if err := os.RemoveAll(kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "--source=dir:"+manifests, "--data-dir="+data, "--secure-port=0", "--write-kubeconfig="+kubeconfig)
	log := &bytes.Buffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	var err error
	wait(t, "a kubeconfig", func() bool {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
		return err == nil
	})
	if info, err := os.Stat(kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info, err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "readiness", func() bool { return status(client, config.Host+"/readyz") == http.StatusOK })
	return config, func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
		for line := range strings.Lines(log.String()) {
			if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "F") {
				t.Errorf("the server logs: %s", line)
			}
		}
	}
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is no %s", what)
		}
	}
}

func status(client *http.Client, url string) int {
	response, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// TestStandalone serves an empty directory: who may do what, that a watch does not
// hold up the end, and that certificates are good for the next start.
func TestStandalone(t *testing.T) {
	manifests, data := t.TempDir(), t.TempDir()
	config, end := serve(t, manifests, data)

	anonymous := rest.AnonymousClientConfig(config)
	client, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/healthz": http.StatusOK,
		"/readyz":  http.StatusOK,
		"/livez":   http.StatusOK,
		"/metrics": http.StatusForbidden,
		"/apis/policy.example.io/v1alpha1/auditresults": http.StatusForbidden,
	} {
		if got := status(client, config.Host+path); got != want {
			t.Errorf("anonymous %s: %d, want %d", path, got, want)
		}
	}

	api, err := versioned.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.PolicyV1alpha1().AuditResults("").Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	begin := time.Now()
	end()
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("the end took %v", took)
	}

	pki := func() map[string]string {
		files, err := filepath.Glob(filepath.Join(data, "pki", "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no certificates: %v", err)
		}
		out := map[string]string{}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", file, info.Mode(), err)
			}
			out[file] = string(content)
		}
		return out
	}
	before := pki()
	_, end = serve(t, manifests, data)
	for file, content := range pki() {
		if before[file] != content {
			t.Errorf("%s was made anew", file)
		}
	}
	end()
}

// TestReview asks a server by posting reviews, and the same policies without a server:
// the answers are the same, and so are the exit statuses.
func TestReview(t *testing.T) {
	policies, manifests := filepath.Join("..", "..", "..", "artifacts", "example", "policies"), filepath.Join("..", "..", "..", "artifacts", "example", "shop")
	data := t.TempDir()
	_, end := serve(t, policies, data)
	defer end()
	kubeconfig := filepath.Join(data, "kubeconfig")
	ask := func(args ...string) (int, string) {
		cmd := command(t, append([]string{"review", "-f", manifests, "--as=alice"}, args...)...)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	offlineStatus, offline := ask("--policies", policies)
	onlineStatus, online := ask("--kubeconfig", kubeconfig)
	if offlineStatus != 1 || onlineStatus != 1 || offline != online || strings.Count(offline, "\n") != 20 {
		t.Errorf("offline %d:\n%s\nonline %d:\n%s", offlineStatus, offline, onlineStatus, online)
	}
	if status, _ := ask("--policies", policies, "--enforcement-point=vap.k8s.io"); status != 0 {
		t.Errorf("where nothing is enforced: %d", status)
	}
	if status, out := ask("--kubeconfig", kubeconfig, "--namespace=storefront"); status != 2 || strings.Contains(out, "payments") || !strings.Contains(out, "storefront/cart") {
		t.Errorf("of one namespace: %d:\n%s", status, out)
	}
	if status, out := ask("--nonsense"); status != 2 || out != "" {
		t.Errorf("a flag that is not known: %d:\n%s", status, out)
	}
}
