package framework

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"
)

// kubernetesVersion is the one that test/controlplane/go.mod requires.
const kubernetesVersion = "v1.37.2"

// Binaries of a control plane.
type Binaries struct {
	Etcd, KubeAPIServer, KubeControllerManager, Kubectl string
}

// repository returns the root of the checkout.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// BuildControlPlane returns the binaries, from the environment or the cache, or
// else builds them, which takes up to 20 minutes on two cores.
func BuildControlPlane(ctx context.Context) (*Binaries, error) {
	module := filepath.Join(repository(), "test", "controlplane")
	dir, err := cacheDir(module)
	if err != nil {
		return nil, err
	}
	// Test packages run at the same time; one builds and the others wait for it.
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	b := &Binaries{}
	for _, binary := range []struct {
		path             *string
		name, env, build string
	}{
		{&b.Etcd, "etcd", "TEST_ASSET_ETCD", "go.etcd.io/etcd/server/v3"},
		{&b.KubeAPIServer, "kube-apiserver", "TEST_ASSET_KUBE_APISERVER", "k8s.io/kubernetes/cmd/kube-apiserver"},
		{&b.KubeControllerManager, "kube-controller-manager", "TEST_ASSET_KUBE_CONTROLLER_MANAGER", "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{&b.Kubectl, "kubectl", "TEST_ASSET_KUBECTL", "k8s.io/kubernetes/cmd/kubectl"},
	} {
		if *binary.path = os.Getenv(binary.env); *binary.path != "" {
			continue
		}
		*binary.path = filepath.Join(dir, binary.name)
		if _, err := os.Stat(*binary.path); err == nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "building %s %s (once; it is kept in %s)\n", binary.name, kubernetesVersion, dir)
		if err := build(ctx, module, binary.build, *binary.path); err != nil {
			return nil, fmt.Errorf("build %s: %w", binary.name, err)
		}
	}
	return b, nil
}

// cacheDir is named after everything that the binaries depend on.
func cacheDir(module string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), buildFlags())
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		hash.Write(data)
	}
	dir := filepath.Join(cache, "policy-apiserver", "controlplane-"+hex.EncodeToString(hash.Sum(nil))[:12])
	return dir, os.MkdirAll(dir, 0o755)
}

// buildFlags inject the version, without which clients cannot parse what the
// server says it is.
func buildFlags() string {
	const pkg = "k8s.io/component-base/version."
	flags := []string{"-s -w"}
	for name, value := range map[string]string{
		"gitVersion": kubernetesVersion, "gitMajor": "1", "gitMinor": "37", "gitTreeState": "clean",
		"gitCommit": "unknown", "buildDate": "1970-01-01T00:00:00Z",
	} {
		flags = append(flags, "-X "+pkg+name+"="+value)
	}
	sort.Strings(flags)
	return strings.Join(flags, " ")
}

func build(ctx context.Context, module, pkg, out string) error {
	temporary := out + ".building" // the lock keeps others away
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", buildFlags(), "-o", temporary, pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	defer progress(filepath.Base(out))()
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(temporary, out)
}

// progress says now and then that something is still being built, until stop is
// called: a build of kube-apiserver is silent for minutes.
func progress(what string) (stop func()) {
	started, done := time.Now(), make(chan struct{})
	go func() {
		for {
			select {
			case <-time.After(time.Minute):
				fmt.Fprintf(os.Stderr, "still building %s after %v\n", what, time.Since(started).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// lock makes other processes wait that build into the same cache.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}

// buildServer builds policy-apiserver into a folder.
func buildServer(ctx context.Context, dir string) (string, error) {
	out := filepath.Join(dir, "policy-apiserver")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "./cmd/policy-apiserver")
	cmd.Dir = repository()
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build policy-apiserver: %w", err)
	}
	return out, nil
}
