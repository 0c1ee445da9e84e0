// Command bench-engine compares the speed of this project's engine with that of
// Gatekeeper's audit, in one process, on the same objects and policies, after
// having compared what they find.
//
// Runs of the two alternate. Each compiles its policies anew, so that nothing is
// remembered from the run before; compiling is not measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"policy.example.io/policy-apiserver/test/differential/corpus"
)

type options struct {
	objects, rounds int
	seed            uint64
	variants        string
}

func main() {
	var o options
	flag.IntVar(&o.objects, "objects", 2000, "how many objects")
	flag.IntVar(&o.rounds, "rounds", 5, "how many runs of each")
	flag.Uint64Var(&o.seed, "seed", 1, "of the random objects")
	flag.StringVar(&o.variants, "variants", "varied,cluster", "which corpora")
	flag.Parse()
	log.SetLogger(logr.Discard())
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-engine:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	policies, err := corpus.Default()
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "bench-engine")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	for variant := range strings.SplitSeq(o.variants, ",") {
		makeObjects := corpus.Varied
		switch variant {
		case "varied":
		case "cluster":
			makeObjects = corpus.Cluster
		default:
			return fmt.Errorf("variant %q is unknown; there are varied and cluster", variant)
		}
		objects, err := makeObjects(o.seed, o.objects)
		if err != nil {
			return err
		}
		b := &bench{policies: policies, objects: objects, directory: directory}
		count, err := b.compare(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", variant, err)
		}
		fmt.Printf("%s: %d objects, %d constraints of %d templates; both engines find the same %d violations\n",
			variant, len(objects.Items), len(policies.Constraints), len(policies.Templates), count)
		if err := b.measure(ctx, o.rounds); err != nil {
			return fmt.Errorf("%s: %w", variant, err)
		}
	}
	return nil
}

// contender is something that audits all objects, prepared by the call and run by
// what that returns.
type contender struct {
	name    string
	procs   int
	prepare func(context.Context) (func() error, error)
	rates   []float64 // objects per second, of each run
}

// measure runs the contenders in turn and prints their rates.
func (b *bench) measure(ctx context.Context, rounds int) error {
	cores := runtime.NumCPU()
	contenders := []*contender{
		{name: "Gatekeeper's audit", procs: 1, prepare: b.preparePeer},
		{name: "Gatekeeper's audit", procs: cores, prepare: b.preparePeer},
		{name: "this engine", procs: 1, prepare: b.prepareEngine(1)},
		{name: "this engine", procs: cores, prepare: b.prepareEngine(cores)},
	}
	for range rounds {
		for _, c := range contenders {
			rate, err := c.run(ctx, len(b.objects.Items))
			if err != nil {
				return err
			}
			c.rates = append(c.rates, rate)
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "engine\tcores\tgoroutines\tobjects/s (median)\tto Gatekeeper, 1 core\tto Gatekeeper, %d cores\truns\n", cores)
	for i, c := range contenders {
		goroutines := 1
		if i >= 2 {
			goroutines = c.procs
		}
		runs := make([]string, len(c.rates))
		for i, rate := range c.rates {
			runs[i] = fmt.Sprintf("%.0f", rate)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.0f\t%.2f\t%.2f\t%s\n", c.name, c.procs, goroutines, c.median(),
			c.median()/contenders[0].median(), c.median()/contenders[1].median(), strings.Join(runs, " "))
	}
	return w.Flush()
}

func (c *contender) run(ctx context.Context, objects int) (float64, error) {
	audit, err := c.prepare(ctx)
	if err != nil {
		return 0, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.procs))
	runtime.GC()
	start := time.Now()
	err = audit()
	return float64(objects) / time.Since(start).Seconds(), err
}

func (c *contender) median() float64 {
	sorted := slices.Sorted(slices.Values(c.rates))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
