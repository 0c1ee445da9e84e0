package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// report is a table with a row for each measurement and, beside each of our values, by
// what factor it is better than the peer's.
type report struct{ rows [][]string }

// value adds a value of each side; better says which ones are, if any.
func (r *report) value(name, unit, better string, values ...float64) {
	row := []string{name, unit}
	for i, v := range values {
		row = append(row, number(v))
		if i == 0 {
			continue
		}
		ratio := ""
		switch {
		case math.IsNaN(values[0]) || math.IsNaN(v):
		case better == "lower" && v > 0:
			ratio = number(values[0] / v)
		case better == "higher" && values[0] > 0:
			ratio = number(v / values[0])
		}
		row = append(row, ratio)
	}
	r.rows = append(r.rows, row)
}

// requests adds how many requests a second were answered, and how fast.
func (r *report) requests(name string, items int, rates, medians, worst []float64) {
	name = fmt.Sprintf("%s (%d)", name, items)
	r.value(name, "1/s", "higher", rates...)
	r.value("... p50", "ms", "lower", medians...)
	r.value("... p99", "ms", "lower", worst...)
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "failed"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// print writes the table as Markdown.
func (r *report) print(w io.Writer) {
	fmt.Fprintln(w, "| what (objects in an answer) | unit | custom resources | this server | factor | this server, directly | factor |")
	fmt.Fprintln(w, "| --- | --- | ---: | ---: | ---: | ---: | ---: |")
	for _, row := range r.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

// memory adds what the servers hold.
func (b *bench) memory(name string) {
	all, anonymous := make([]float64, len(b.sides)), make([]float64, len(b.sides))
	for i, s := range b.sides {
		all[i], anonymous[i] = s.memory("VmRSS:"), s.memory("RssAnon:")
	}
	b.report.value(name+", RSS", "MiB", "lower", all...)
	b.report.value(name+", without file pages", "MiB", "lower", anonymous...)
}

// memory sums a line of the status of a side's servers, in MiB.
func (s *side) memory(line string) float64 {
	sum := 0.0
	for _, pid := range s.pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has ended, which the next request tells
		}
		for text := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(text, line); ok {
				if kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64); err == nil {
					sum += kib / 1024
				}
			}
		}
	}
	return sum
}

// watchMemory returns a function that ends the watch and tells by how much memory has
// grown at most.
func (s *side) watchMemory(ctx context.Context) func() float64 {
	ctx, cancel := context.WithCancel(ctx)
	before := s.memory("RssAnon:")
	peak := make(chan float64)
	go func() {
		most := before
		for ctx.Err() == nil {
			most = max(most, s.memory("RssAnon:"))
			time.Sleep(10 * time.Millisecond)
		}
		peak <- most
	}()
	return func() float64 {
		cancel()
		return max(<-peak-before, 0)
	}
}

// diskUsage sums the sizes of the files at a path, in MiB.
func diskUsage(path string) (float64, error) {
	sum := 0.0
	err := filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone in the meantime
		}
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			sum += float64(info.Size()) / (1 << 20)
		}
		return err
	})
	return sum, err
}
