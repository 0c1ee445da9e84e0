package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// BenchmarkFirstAudit starts the server with an empty index on a cluster of 10,000
// objects under 10 constraints, all of which they fail, and reports the time from its
// start to the end of the first complete run, its peak memory, with and without the
// pages of the index file, and its requests to the kube-apiserver:
//
//	go test -run '^$' -bench FirstAudit -benchtime 1x ./test/e2e
func BenchmarkFirstAudit(b *testing.B) {
	ctx := context.Background()
	core, err := kubernetes.NewForConfig(cp.Admin)
	if err != nil {
		b.Fatal(err)
	}
	apply(b, template("E2EScale"), namespace("e2e-scale"))
	remove(b, "constrainttemplate/e2escale", "namespace/e2e-scale")
	for i := range 10 {
		apply(b, constraint("E2EScale", fmt.Sprintf("scale-%d", i), "ServiceAccount", "e2e-scale", fmt.Sprintf("label-%d", i)))
	}
	createServiceAccounts(ctx, b, core, "e2e-scale", 10_000)
	settled(b)
	for b.Loop() {
		server.Stop(syscall.SIGTERM)
		started := time.Now()
		heap := make(chan float64)
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			peak := 0.0
			for ctx.Err() == nil {
				peak = max(peak, memoryMiB(b, "RssAnon:"))
				time.Sleep(10 * time.Millisecond)
			}
			heap <- peak
		}()
		if err := server.Start("--data-dir=" + b.TempDir()); err != nil {
			b.Fatal(err)
		}
		var run v1alpha1.AuditRun
		eventually(b, time.Minute, "first run", func() error {
			runs, err := client.PolicyV1alpha1().AuditRuns().List(ctx, metav1.ListOptions{FieldSelector: "phase=Complete"})
			if err != nil {
				return err
			}
			if len(runs.Items) == 0 {
				return fmt.Errorf("no run is complete")
			}
			run = runs.Items[0]
			return nil
		})
		b.ReportMetric(run.Finished.Sub(started).Seconds(), "s/first-run")
		b.ReportMetric(float64(run.Evaluated), "objects")
		requests, err := server.Metric("rest_client_requests_total")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(requests, "requests")
		b.ReportMetric(memoryMiB(b, "VmHWM:"), "MiB-peak")
		cancel()
		b.ReportMetric(<-heap, "MiB-peak-anonymous")
	}
}

// memoryMiB reads a line of the server's status, 0 while the server starts.
func memoryMiB(b *testing.B, name string) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				b.Error(err)
			}
			return kib / 1024
		}
	}
	return 0
}
