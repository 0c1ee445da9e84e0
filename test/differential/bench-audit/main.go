// Command bench-audit compares audits of a cluster: Gatekeeper's manager, as it is
// installed and with --audit-match-kind-only, and this server, one after the other on
// the same kube-apiserver and etcd, with the same objects and constraints.
//
// Each reaches the kube-apiserver through a proxy that counts requests and bytes. Objects
// are written to etcd past the kube-apiserver, which serves them as any others. There is
// no controller manager, so that nobody else changes anything.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/test/differential/corpus"
	"policy.example.io/policy-apiserver/test/framework"
)

// settings of the benchmark.
type settings struct {
	objects int
	steady  time.Duration
	changed float64
	pods    float64
	dir     string
	skip    bool
}

func main() {
	var o settings
	flag.IntVar(&o.objects, "objects", 100_000, "how many objects")
	flag.DurationVar(&o.steady, "steady", 10*time.Minute, "how long the steady state is measured")
	flag.Float64Var(&o.changed, "changed", 1, "how many percent of the objects change a minute")
	flag.Float64Var(&o.pods, "heartbeats", 20, "how many percent of the Pods have their status written a minute")
	flag.StringVar(&o.dir, "dir", "", "folder for all files; a temporary one if it is empty")
	flag.BoolVar(&o.skip, "skip-match-kind-only", false, "leave out Gatekeeper with --audit-match-kind-only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-audit:", err)
		os.Exit(1)
	}
}

// side is one of what is compared.
type side interface {
	// name for the table.
	name() string
	// start starts it against a kube-apiserver and returns its process id.
	start(ctx context.Context, proxy *proxy) (pid int, err error)
	// complete waits until the first audit is complete, and returns how long the audit
	// itself took, without waiting for its turn.
	complete(ctx context.Context) (time.Duration, error)
	// delays returns how long each of the changes that were made took to be seen.
	delays(ctx context.Context) ([]time.Duration, error)
	stop()
}

func run(ctx context.Context, o settings) error {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "bench-audit-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	policies, err := corpus.Default()
	if err != nil {
		return err
	}
	progress("starting etcd and kube-apiserver")
	cp, err := framework.StartWithoutControllers(ctx, o.dir)
	if err != nil {
		return err
	}
	defer cp.Stop()
	c := &cluster{ControlPlane: cp, settings: o}
	if err := c.install(ctx, policies); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	progress("writing %d objects", o.objects)
	if err := c.load(); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	sides := []side{&gatekeeper{cluster: c}}
	if !o.skip {
		sides = append(sides, &gatekeeper{cluster: c, matchKindOnly: true})
	}
	sides = append(sides, &ours{cluster: c})
	var results []*result
	for _, s := range sides {
		progress("%s", s.name())
		r, err := c.measure(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		results = append(results, r)
	}
	fmt.Printf("%d objects, %d constraints; steady state of %v: %v%% of the objects change a minute, and %v%% of the Pods get a new status\n\n",
		len(c.keys), len(policies.Constraints), o.steady, o.changed, o.pods)
	print(os.Stdout, results)
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
