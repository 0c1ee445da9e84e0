// Command bench-query compares this server with the kube-apiserver: the same
// findings, once in the index and once as custom resources in etcd, asked for in the
// same ways by the same client.
//
// A real kube-apiserver and etcd run on this machine, and this server as a process
// of its own behind the aggregation layer. The kube-apiserver holds the custom
// resources in its watch cache, and that is warm. There is no controller manager: a
// garbage collector would follow the custom resources as well.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/test/framework"
)

// settings of the benchmark.
type settings struct {
	objects, namespaces, constraints int
	seconds                          float64
	clients                          int
	informers, watches               int
	writes                           int
	dir                              string
}

func main() {
	// The benchmark starts itself a second time, as the server.
	if objects := os.Getenv(serveEnv); objects != "" {
		exit(serve(objects))
	}
	var o settings
	flag.IntVar(&o.objects, "objects", 1_000_000, "how many findings")
	flag.IntVar(&o.namespaces, "namespaces", 5000, "in how many namespaces")
	flag.IntVar(&o.constraints, "constraints", 200, "of how many constraints")
	flag.Float64Var(&o.seconds, "seconds", 4, "how long each request is repeated")
	flag.IntVar(&o.clients, "clients", 2, "how many clients ask at the same time")
	flag.IntVar(&o.informers, "informers", 200, "how many informers, each of one namespace")
	flag.IntVar(&o.watches, "watches", 200, "how many watches of everything")
	flag.IntVar(&o.writes, "writes", 1000, "how many changes a second the writer makes")
	flag.StringVar(&o.dir, "dir", "", "folder for all files; a temporary one if it is empty")
	flag.Parse()
	exit(run(o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-query:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(o settings) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// client-go complains of servers that are slow, which the table tells.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "bench-query-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	c := corpus{objects: o.objects, namespaces: min(o.namespaces, o.objects), constraints: o.constraints}
	r := &report{sides: []string{peerName, aggregatedName, directName}}
	if err := runPeer(ctx, o, c, r); err != nil {
		return err
	}
	if err := runOurs(ctx, o, c, r); err != nil {
		return err
	}
	fmt.Printf("%d findings of %d constraints in %d namespaces; %d clients; %.0f s each\n\n", o.objects, o.constraints, c.namespaces, o.clients, o.seconds)
	return r.print(os.Stdout)
}

// runPeer measures the custom resources, on a control plane that has nothing else to do.
func runPeer(ctx context.Context, o settings, c corpus, r *report) error {
	// Without a limit, its garbage collector lets the kube-apiserver take twice the memory
	// that it needs, which is more than many machines have.
	if total, ok := memInfo("MemTotal:"); ok {
		if err := os.Setenv("GOMEMLIMIT", fmt.Sprintf("%dMiB", total*3/4)); err != nil {
			return err
		}
	}
	progress("starting etcd and kube-apiserver for the custom resources")
	dir := filepath.Join(o.dir, "peer")
	cp, err := startControlPlane(ctx, dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	defer cp.Stop()
	if err := os.Unsetenv("GOMEMLIMIT"); err != nil {
		return err
	}
	started := time.Now()
	if err := loadPeer(ctx, cp, c); err != nil {
		return fmt.Errorf("load the custom resources: %w", err)
	}
	loaded := time.Since(started)
	progress("waiting for the kube-apiserver to have read them")
	started = time.Now()
	peer, err := newPeer(ctx, cp, c)
	if err != nil {
		return err
	}
	b := &bench{settings: o, corpus: c, report: r, sides: []*side{peer}}
	r.value("load", "s", "", b.sides, loaded.Seconds())
	r.value("start with what is stored", "s", "", b.sides, time.Since(started).Seconds())
	guarded, stop := guard(ctx, peer)
	defer stop()
	if err := b.all(guarded); err != nil {
		if context.Cause(guarded) != errOutOfMemory {
			return err
		}
		progress(fmt.Sprintf("custom resources: %v: %v", errOutOfMemory, err))
		return nil
	}
	size, err := diskUsage(filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	r.value("disk", "MiB", "", b.sides, size)
	return nil
}

// runOurs measures this server, behind a kube-apiserver without custom resources.
func runOurs(ctx context.Context, o settings, c corpus, r *report) error {
	progress("starting etcd and kube-apiserver for this server")
	dir := filepath.Join(o.dir, "ours")
	cp, err := startControlPlane(ctx, dir)
	if err != nil {
		return err
	}
	defer cp.Stop()
	progress("loading the index")
	ours, err := newOurs(ctx, cp, c)
	if err != nil {
		return err
	}
	b := &bench{settings: o, corpus: c, report: r, sides: []*side{ours.aggregated, ours.direct}}
	r.value("load", "s", "", b.sides, ours.loaded.Seconds(), ours.loaded.Seconds())
	r.value("start with what is stored", "s", "", b.sides, ours.opened.Seconds(), ours.opened.Seconds())
	if err := b.all(ctx); err != nil {
		return err
	}
	size, err := diskUsage(filepath.Join(dir, "data", "index.db"))
	if err != nil {
		return err
	}
	r.value("disk", "MiB", "", b.sides, size, size)
	return nil
}

func startControlPlane(ctx context.Context, dir string) (*framework.ControlPlane, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return framework.StartWithoutControllers(ctx, dir)
}

// progress says on standard error what is going on.
func progress(text string) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), text)
}
