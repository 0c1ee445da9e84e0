package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is a table with a row for each measurement and, beside each of our values, by
// what factor it is better than the peer's. The sides are measured one after the other,
// so that a row gets its values one by one.
type report struct {
	sides []string
	rows  []*row
}

type row struct {
	// key tells rows apart; name is shown.
	key, name, unit, better string
	// values by side; one that is not measured is no number.
	values []float64
	// items of an answer, by side.
	items map[string]int
}

// value adds a value of each of some sides; better says which ones are, if any.
func (r *report) value(name, unit, better string, sides []*side, values ...float64) {
	r.row(name, name, unit, better).set(r, sides, values)
}

// requests adds how many requests a second were answered, and how fast.
func (r *report) requests(name string, items int, sides []*side, rates, medians, worst []float64) {
	rate := r.row(name, fmt.Sprintf("%s (%d)", name, items), "1/s", "higher")
	rate.set(r, sides, rates)
	for _, s := range sides {
		rate.items[s.name] = items
	}
	r.row(name+" p50", "... p50", "ms", "lower").set(r, sides, medians)
	r.row(name+" p99", "... p99", "ms", "lower").set(r, sides, worst)
}

// row returns the row with a key, which it adds if there is none.
func (r *report) row(key, name, unit, better string) *row {
	for _, known := range r.rows {
		if known.key == key {
			return known
		}
	}
	added := &row{key: key, name: name, unit: unit, better: better, values: make([]float64, len(r.sides)), items: map[string]int{}}
	for i := range added.values {
		added.values[i] = math.NaN()
	}
	r.rows = append(r.rows, added)
	return added
}

func (w *row) set(r *report, sides []*side, values []float64) {
	for i, s := range sides {
		w.values[slices.Index(r.sides, s.name)] = values[i]
		progress(fmt.Sprintf("%s: %s: %s %s", w.key, s.name, number(values[i]), w.unit))
	}
}

// cells of the row: name, unit, and the value of each side, with its factor behind all
// but the first.
func (w *row) cells() []string {
	cells := []string{w.name, w.unit}
	for i, v := range w.values {
		cells = append(cells, number(v))
		if i == 0 {
			continue
		}
		ratio := ""
		switch {
		case math.IsNaN(w.values[0]) || math.IsNaN(v):
		case w.better == "lower" && v > 0:
			ratio = number(w.values[0] / v)
		case w.better == "higher" && w.values[0] > 0:
			ratio = number(v / w.values[0])
		}
		cells = append(cells, ratio)
	}
	return cells
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

// print writes the table as Markdown. Answers with different numbers of items to the same
// question are an error.
func (r *report) print(w io.Writer) error {
	fmt.Fprintln(w, "| what (objects in an answer) | unit | custom resources | this server | factor | this server, directly | factor |")
	fmt.Fprintln(w, "| --- | --- | ---: | ---: | ---: | ---: | ---: |")
	var errs []error
	for _, row := range r.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row.cells(), " | "))
		if counts := slices.Sorted(maps.Values(row.items)); len(counts) > 0 && counts[0] != counts[len(counts)-1] {
			errs = append(errs, fmt.Errorf("%s: the answers have different numbers of items: %v", row.key, row.items))
		}
	}
	return errors.Join(errs...)
}

// memory adds what the servers hold.
func (b *bench) memory(name string) {
	all, anonymous := make([]float64, len(b.sides)), make([]float64, len(b.sides))
	for i, s := range b.sides {
		all[i], anonymous[i] = s.memory("VmRSS:"), s.memory("RssAnon:")
	}
	b.report.value(name+", RSS", "MiB", "lower", b.sides, all...)
	b.report.value(name+", without file pages", "MiB", "lower", b.sides, anonymous...)
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
