package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/test/framework"
)

// TestManifests looks at what the kube-apiserver does not check. It has checked the
// rest when the framework applied them, except those of cert-manager, whose kinds it
// does not have.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(framework.DeployDir(), "*", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimPrefix(file, framework.DeployDir()+"/")
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			kustomization, err := os.ReadFile(filepath.Join(filepath.Dir(file), "kustomization.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.Contains("\n"+string(data), "\n---"):
				t.Error("more than one object in a file")
			case strings.Contains(string(data), "insecureSkipTLSVerify"):
				t.Error("the aggregation layer must verify the server")
			case !regexp.MustCompile(`[ \[]` + regexp.QuoteMeta(filepath.Base(file)) + `[\]\n]`).Match(kustomization):
				t.Error("the kustomization does not have it")
			}
		})
	}
}

// TestKustomize builds what a user would with the component for cert-manager.
func TestKustomize(t *testing.T) {
	dir := t.TempDir()
	deploy, err := filepath.Rel(evalSymlinks(t, dir), evalSymlinks(t, framework.DeployDir()))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%[1]s/base]\ncomponents: [%[1]s/cert-manager]\n", deploy)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var secret, injected string
	certificates := map[string]string{}
	for _, document := range strings.Split(kubectl(t, "kustomize", dir), "\n---\n") {
		var object struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
			Spec              struct {
				SecretName string   `json:"secretName"`
				DNSNames   []string `json:"dnsNames"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		switch object.Kind {
		case "APIService":
			injected = object.Annotations["cert-manager.io/inject-ca-from"]
		case "Certificate":
			certificates[object.Namespace+"/"+object.Name] = fmt.Sprint(object.Spec.SecretName, object.Spec.DNSNames)
		case "StatefulSet":
			secret = podTemplate(t).Spec.Volumes[0].Secret.SecretName
		}
	}
	if want := secret + "[policy-apiserver.policy-system.svc]"; secret == "" || certificates[injected] != want {
		t.Errorf("the APIService trusts the certificate %q of %v, the Pod has the Secret %q", injected, certificates, secret)
	}
}

func evalSymlinks(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func podTemplate(t *testing.T) corev1.PodTemplateSpec {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(framework.DeployDir(), "base", "statefulset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.StatefulSet
	if err := yaml.UnmarshalStrict(data, &set); err != nil {
		t.Fatal(err)
	}
	return set.Spec.Template
}

// TestPod is admitted by the namespace's Pod Security level, restricted, and has
// flags that the server knows.
func TestPod(t *testing.T) {
	pod := podTemplate(t)
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": pod.Spec,
		"metadata": map[string]any{"name": "policy-apiserver-0", "namespace": "policy-system", "labels": pod.Labels},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Kubectl(strings.Replace(string(data), `"volumes":[`, `"volumes":[{"name":"data","emptyDir":{}},`, 1), "create", "--dry-run=server", "-f", "-"); err != nil {
		t.Error(err)
	}
	args := append(slices.Clone(pod.Spec.Containers[0].Args), "--help")
	if out, err := exec.Command(server.Binary, args...).CombinedOutput(); err != nil {
		t.Errorf("%v: %v: %.300s", args, err, out)
	}
}

// TestRights are those that artifacts/deploy gives the server, and no more.
func TestRights(t *testing.T) {
	for what, want := range map[string]string{
		"list pods":                        "yes",
		"watch secrets":                    "yes",
		"list nodes":                       "yes",
		"watch widgets.some.example.io":    "yes",
		"list flowschemas":                 "yes",
		"create customresourcedefinitions": "yes",
		"update customresourcedefinitions": "yes",
		"delete customresourcedefinitions": "no",
		"create tokenreviews":              "yes",
		"create subjectaccessreviews":      "yes",
		"create pods":                      "no",
		"update configmaps":                "no",
		"patch apiservices":                "no",
		"update constrainttemplates":       "no",
		"create serviceaccounts/token":     "no",
		"impersonate users":                "no",
		"bind clusterroles":                "no",

		"update constrainttemplates --subresource=finalizers":    "no",
		"patch flowschemas --subresource=status":                 "yes",
		"patch prioritylevelconfigurations --subresource=status": "no",
	} {
		args := append([]string{"auth", "can-i", "-A", "--as=system:serviceaccount:policy-system:policy-apiserver"}, strings.Fields(what)...)
		out, err := cp.Kubectl("", args...)
		if got := strings.Fields(out); len(got) == 0 || got[len(got)-1] != want {
			t.Errorf("%s: got %q (%v), want %s", what, out, err, want)
		}
	}
}

// TestTemplateDefinition has the same schema in all versions, except for the default
// that is left in a template of which version it was written as.
func TestTemplateDefinition(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(framework.DeployDir(), "constrainttemplate-crd", "constrainttemplates.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string `json:"name"`
				Schema any    `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, version := range crd.Spec.Versions {
		schema, err := json.Marshal(version.Schema)
		if err != nil {
			t.Fatal(err)
		}
		got[version.Name] = string(schema)
	}
	old := strings.NewReplacer(`"default":false`, `"default":true`, `{"legacySchema":false}`, `{"legacySchema":true}`).Replace(got["v1"])
	if diff := cmp.Diff(map[string]string{"v1": got["v1"], "v1beta1": old, "v1alpha1": old}, got); diff != "" {
		t.Error(diff)
	}
}

// TestMakeCerts renews certificates with hack/make-certs.sh while requests are made all
// the time: through the kube-apiserver, and on new connections that trust what the
// APIService does. None fails, not even where the script is run again before the server
// has its new certificate.
func TestMakeCerts(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	t.Setenv("PATH", filepath.Dir(cp.Binaries.Kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", cp.AdminKubeconfig)
	makeCerts(t)
	serveSecret(t)
	stop := load(t, map[string]func() error{
		"through the kube-apiserver": func() error {
			_, err := client.PolicyV1alpha1().ConstraintSummaries().List(context.Background(), metav1.ListOptions{})
			return err
		},
		"on a new connection": func() error {
			bundle, err := bundle()
			if err != nil {
				return err
			}
			connection, err := tls.Dial("tcp", server.Address(), &tls.Config{RootCAs: pool(bundle), ServerName: framework.ServiceHost})
			if err != nil {
				return err
			}
			return connection.Close()
		},
	})
	for range 2 {
		makeCerts(t)
		makeCerts(t)
		serveSecret(t)
	}
	for what, requests := range stop() {
		if requests == 0 {
			t.Errorf("no request was made %s", what)
		}
	}
	makeCerts(t, "--forget-old")
	after, err := bundle()
	if err != nil || len(certificates(after)) != 1 {
		t.Errorf("the bundle has %d certificates, %v", len(certificates(after)), err)
	}
	serveSecret(t)
	eventually(t, 30*time.Second, "the server with the one CA that is left", func() error {
		_, err := client.PolicyV1alpha1().ConstraintSummaries().List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// load calls functions again and again until it is stopped. It returns how often each
// was called; the test fails for each error.
func load(t *testing.T, functions map[string]func() error) (stop func() map[string]int64) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	counts := map[string]*atomic.Int64{}
	for what, function := range functions {
		count := &atomic.Int64{}
		counts[what] = count
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := function(); err != nil {
						t.Errorf("%s: %v", what, err)
						return
					}
					count.Add(1)
				}
			})
		}
	}
	return func() map[string]int64 {
		cancel()
		wg.Wait()
		out := map[string]int64{}
		for what, count := range counts {
			out[what] = count.Load()
		}
		return out
	}
}

func makeCerts(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(filepath.Join(framework.DeployDir(), "..", "..", "hack", "make-certs.sh"), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// bundle is what the APIService trusts.
func bundle() ([]byte, error) {
	out, err := cp.Kubectl("", "get", "apiservice", "v1alpha1.policy.example.io", "-o", "jsonpath={.spec.caBundle}")
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(out)
}

func pool(bundle []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	return pool
}

// certificates returns the blocks of a bundle.
func certificates(bundle []byte) (blocks []*pem.Block) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	return blocks
}

// serveSecret does what the kubelet does with the Secret, and waits until the server
// has the new certificate, which it picks up while it runs.
func serveSecret(t *testing.T) {
	t.Helper()
	for file, key := range map[string]string{server.Cert: `tls\.crt`, server.Key: `tls\.key`} {
		data, err := base64.StdEncoding.DecodeString(kubectl(t, "get", "secret", "policy-apiserver-tls", "-n", "policy-system", "-o", "jsonpath={.data."+key+"}"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := tls.LoadX509KeyPair(server.Cert, server.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := bundle()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 90*time.Second, "new certificate", func() error {
		connection, err := tls.Dial("tcp", server.Address(), &tls.Config{RootCAs: pool(trusted), ServerName: framework.ServiceHost})
		if err != nil {
			return err
		}
		defer connection.Close()
		if !connection.ConnectionState().PeerCertificates[0].Equal(want.Leaf) {
			return fmt.Errorf("the server still has the old one")
		}
		return nil
	})
}
