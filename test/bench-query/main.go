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
	corpus := corpus{objects: o.objects, namespaces: min(o.namespaces, o.objects), constraints: o.constraints}
	progress("starting etcd and kube-apiserver")
	cp, err := framework.StartWithoutControllers(ctx, o.dir)
	if err != nil {
		return err
	}
	defer cp.Stop()
	started := time.Now()
	if err := loadPeer(ctx, cp, corpus); err != nil {
		return fmt.Errorf("load the custom resources: %w", err)
	}
	peerLoaded := time.Since(started)
	progress("waiting for the kube-apiserver to have read them")
	started = time.Now()
	peer, err := newPeer(ctx, cp, corpus)
	if err != nil {
		return err
	}
	peerReady := time.Since(started)
	progress("loading the index")
	ours, err := newOurs(ctx, cp, corpus)
	if err != nil {
		return err
	}
	r := &report{}
	b := &bench{settings: o, corpus: corpus, report: r, sides: []*side{peer, ours.aggregated, ours.direct}}
	r.value("load", "s", "", peerLoaded.Seconds(), ours.loaded.Seconds(), ours.loaded.Seconds())
	r.value("start with what is stored", "s", "", peerReady.Seconds(), ours.opened.Seconds(), ours.opened.Seconds())
	b.memory("memory at rest")
	if err := b.all(ctx); err != nil {
		return err
	}
	b.memory("memory at the end")
	peerSize, err := diskUsage(filepath.Join(o.dir, "etcd"))
	if err != nil {
		return err
	}
	ourSize, err := diskUsage(filepath.Join(o.dir, "data", "index.db"))
	if err != nil {
		return err
	}
	r.value("disk", "MiB", "", peerSize, ourSize, ourSize)
	fmt.Printf("%d findings of %d constraints in %d namespaces; %d clients; %.0f s each\n\n", o.objects, o.constraints, corpus.namespaces, o.clients, o.seconds)
	r.print(os.Stdout)
	return nil
}

// progress says on standard error what is going on.
func progress(text string) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), text)
}
