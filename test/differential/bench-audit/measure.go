package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// result of a side. Figures of the steady state are a minute's.
type result struct {
	name                               string
	first                              time.Duration // the first audit
	cpu, requests, bytes, puts, memory float64       // until then; seconds, ..., MiB at the peak
	steadyCPU, steadyRequests          float64
	steadyBytes, steadyPuts            float64
	delays                             []time.Duration
}

// counters at some time.
type counters struct{ cpu, requests, bytes, puts float64 }

func (c *cluster) counters(pid int, p *proxy) (counters, error) {
	cpu, err := cpuSeconds(pid)
	if err != nil {
		return counters{}, err
	}
	puts, err := c.etcdPuts()
	return counters{cpu, float64(p.requests.Load()), float64(p.bytes.Load()), puts}, err
}

func (a counters) minus(b counters) counters {
	return counters{a.cpu - b.cpu, a.requests - b.requests, a.bytes - b.bytes, a.puts - b.puts}
}

// measure measures a side.
func (c *cluster) measure(ctx context.Context, s side) (*result, error) {
	p, err := newProxy(c.Admin)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	before, err := c.etcdPuts()
	if err != nil {
		return nil, err
	}
	pid, err := s.start(ctx, p)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	r := &result{name: s.name()}
	if r.first, err = s.complete(ctx); err != nil {
		return nil, err
	}
	now, err := c.counters(pid, p)
	if err != nil {
		return nil, err
	}
	r.cpu, r.requests, r.bytes, r.puts = now.cpu, now.requests, now.bytes, now.puts-before
	progress("first audit: %v, %.1f s of CPU; steady state", r.first.Round(time.Millisecond), r.cpu)
	random := rand.New(rand.NewPCG(1, 2))
	c.probes = map[string]time.Time{}
	started, written := time.Now(), 0
	begin := now
	for time.Since(started) < c.steady && ctx.Err() == nil {
		version := c.version
		if err := c.changes(random); err != nil {
			return nil, err
		}
		written += c.version - version
		time.Sleep(time.Until(started.Add(time.Since(started).Truncate(time.Second) + time.Second)))
	}
	if now, err = c.counters(pid, p); err != nil {
		return nil, err
	}
	minutes := time.Since(started).Minutes()
	steady := now.minus(begin)
	r.steadyCPU, r.steadyRequests, r.steadyBytes = steady.cpu/minutes, steady.requests/minutes, steady.bytes/minutes
	r.steadyPuts = (steady.puts - float64(written)) / minutes
	if r.delays, err = s.delays(ctx); err != nil {
		return nil, err
	}
	r.memory, err = peakMiB(pid)
	return r, err
}

// cpuSeconds is the CPU time that a process has used.
func cpuSeconds(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// Behind the name, which may have spaces; user and system time are the 14th and 15th.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	ticks := 0.0
	for _, field := range fields[11:13] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks / 100, nil // USER_HZ
}

// peakMiB is the largest resident memory that a process has had.
func peakMiB(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmHWM", pid)
}

// etcdPuts is how many keys have been put so far.
func (c *cluster) etcdPuts() (float64, error) {
	response, err := http.Get(c.EtcdURL() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, "etcd_mvcc_put_total "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("etcd has no metric etcd_mvcc_put_total")
}

// print writes a table: the last side is compared with each of the others.
func print(w io.Writer, results []*result) {
	rows := []struct {
		name  string
		value func(*result) float64
	}{
		{"first audit, s", func(r *result) float64 { return r.first.Seconds() }},
		{"... CPU of it, s", func(r *result) float64 { return r.cpu }},
		{"... requests", func(r *result) float64 { return r.requests }},
		{"... MiB from the kube-apiserver", func(r *result) float64 { return r.bytes / (1 << 20) }},
		{"... writes to etcd", func(r *result) float64 { return r.puts }},
		{"steady, CPU s a minute", func(r *result) float64 { return r.steadyCPU }},
		{"... requests a minute", func(r *result) float64 { return r.steadyRequests }},
		{"... MiB a minute", func(r *result) float64 { return r.steadyBytes / (1 << 20) }},
		{"... writes to etcd a minute", func(r *result) float64 { return r.steadyPuts }},
		{"change to visible, p50, s", func(r *result) float64 { return percentile(r.delays, 50).Seconds() }},
		{"... p99, s", func(r *result) float64 { return percentile(r.delays, 99).Seconds() }},
		{"peak memory, MiB", func(r *result) float64 { return r.memory }},
	}
	last, others := results[len(results)-1], results[:len(results)-1]
	var text strings.Builder
	text.WriteString("|")
	for _, r := range results {
		text.WriteString("\t| " + r.name)
	}
	for _, r := range others {
		text.WriteString("\t| to " + r.name)
	}
	text.WriteString("\t|\n| ---" + strings.Repeat(" | ---", 2*len(results)-1) + " |\n")
	for _, row := range rows {
		text.WriteString("| " + row.name)
		for _, r := range results {
			fmt.Fprintf(&text, "\t| %.3g", row.value(r))
		}
		for _, r := range others {
			text.WriteString("\t| ")
			if ours := row.value(last); ours > 0 {
				fmt.Fprintf(&text, "%.3g", row.value(r)/ours)
			}
		}
		text.WriteString("\t|\n")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// Both are the standard output, in the end.
	_, _ = io.WriteString(t, text.String())
	_ = t.Flush()
}

func percentile(all []time.Duration, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*percent/100)]
}
