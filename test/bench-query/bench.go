package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// bench measures the sides, one after the other with each request.
type bench struct {
	settings
	corpus corpus
	report *report
	sides  []*side
}

// all measures everything.
func (b *bench) all(ctx context.Context) error {
	b.memory("memory at rest")
	for _, step := range []func(context.Context) error{b.pages, b.selections, b.fullList, b.informersSync, b.fanOut, b.pagesUnderWrites} {
		if err := step(ctx); err != nil {
			return err
		}
		// What failed for want of memory must not be taken for an answer.
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	b.memory("memory at the end")
	return nil
}

const pageSize = 500

// sampled is how many pages from all of the list are read one after the other.
const sampled = 200

// pages reads pages from all of the list, and then single ones of them again and again.
func (b *bench) pages(ctx context.Context) error {
	seconds := make([]float64, len(b.sides))
	for i, s := range b.sides {
		progress("pages: " + s.name)
		if err := s.findTokens(ctx, s, b.corpus); err != nil {
			return err
		}
		started := time.Now()
		for page := 0; page < len(s.tokens); page += max(1, len(s.tokens)/sampled) {
			body, err := s.open(ctx, s.page(page))
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, body)
			body.Close()
			if err != nil {
				return err
			}
		}
		seconds[i] = time.Since(started).Seconds()
	}
	n := len(b.sides[0].tokens)
	if expected := (b.corpus.objects + pageSize - 1) / pageSize; n != expected {
		return fmt.Errorf("there are %d pages, and not %d", n, expected)
	}
	stride := max(1, n/sampled)
	b.report.value(fmt.Sprintf("%d pages of 500 from all of the list, one after the other", (n+stride-1)/stride), "s", "lower", b.sides, seconds...)
	for _, page := range []struct {
		name string
		of   func(n int) int
	}{
		{"first page of 500", func(int) int { return 0 }},
		{"middle page of 500", func(n int) int { return n / 2 }},
		{"last page of 500", func(n int) int { return n - 1 }},
		{"random page of 500", rand.IntN},
	} {
		err := b.throughput(ctx, page.name, func(s *side) string { return s.page(page.of(len(s.tokens))) })
		if err != nil {
			return err
		}
	}
	return nil
}

// walk finds the tokens of all pages by reading them.
func walk(ctx context.Context, s *side, _ corpus) error {
	s.tokens = []string{""}
	for {
		token, err := s.nextToken(ctx)
		if err != nil || token == "" {
			return err
		}
		s.tokens = append(s.tokens, token)
	}
}

// computeTokens makes the tokens of all pages from that of the second one, as the
// kube-apiserver would: of a million custom resources, etcd has removed the revision of
// the first page, 5 minutes old, before the last one is read.
func computeTokens(ctx context.Context, s *side, c corpus) error {
	s.tokens = []string{""}
	token, err := s.nextToken(ctx)
	if err != nil {
		return err
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return fmt.Errorf("decode the token %q: %w", token, err)
	}
	second := corpusKey(c, pageSize-1)
	if !bytes.Contains(text, []byte(second)) {
		return fmt.Errorf("the token %s does not name %s", text, second)
	}
	for next := pageSize; next < c.objects; next += pageSize {
		text := strings.Replace(string(text), second, corpusKey(c, next-1), 1)
		s.tokens = append(s.tokens, base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	return nil
}

// corpusKey is what a token names the i-th finding by.
func corpusKey(c corpus, i int) string { return fmt.Sprintf("%s/finding-%07d", c.namespace(i), i) }

// nextToken reads the last page that is known and returns the token of the next, which is
// empty if there is none.
func (s *side) nextToken(ctx context.Context) (string, error) {
	body, err := s.open(ctx, s.page(len(s.tokens)-1))
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return "", err
	}
	// The token is in front of the items, or, of custom resources, behind them, and
	// empty or absent at the end.
	_, rest, _ := bytes.Cut(text, []byte(`"continue":"`))
	token, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(token), nil
}

func (s *side) page(i int) string {
	return s.path("", fmt.Sprintf("?limit=%d&continue=%s", pageSize, url.QueryEscape(s.tokens[i])))
}

// selections asks for parts of the list.
func (b *bench) selections(ctx context.Context) error {
	random := func(format string, n int) func() string {
		return func() string { return fmt.Sprintf(format, rand.IntN(n)) }
	}
	ownerName, resourceName := random("owner-%02d", owners), random("workload-%05d", min(resources, b.corpus.objects))
	for _, request := range []struct {
		name string
		url  func(s *side) string
	}{
		{"1 % by a field, 500 of them", func(s *side) string { return s.path("", "?limit=500&fieldSelector=owner.name%3D"+ownerName()) }},
		{"1 % by a label, 500 of them", func(s *side) string { return s.path("", "?limit=500&labelSelector=owner%3D"+ownerName()) }},
		{"0.01 % by a field", func(s *side) string { return s.path("", "?fieldSelector=resource.name%3D"+resourceName()) }},
		{"0.01 % by a label", func(s *side) string { return s.path("", "?labelSelector=resource%3D"+resourceName()) }},
		{"one namespace", func(s *side) string { return s.path(b.corpus.namespace(rand.IntN(b.corpus.objects)), "") }},
		{"one object", func(s *side) string {
			i := rand.IntN(b.corpus.objects)
			return s.path(b.corpus.namespace(i), fmt.Sprintf("/finding-%07d", i))
		}},
	} {
		if err := b.throughput(ctx, request.name, request.url); err != nil {
			return err
		}
	}
	return nil
}

// throughput repeats a request for a while, with some clients at the same time.
func (b *bench) throughput(ctx context.Context, name string, url func(*side) string) error {
	rates, medians, worst := make([]float64, len(b.sides)), make([]float64, len(b.sides)), make([]float64, len(b.sides))
	counts := make([]int, len(b.sides))
	for i, s := range b.sides {
		progress(name + ": " + s.name)
		var err error
		if counts[i], err = s.count(ctx, url(s)); err != nil {
			return err
		}
		latencies, elapsed, err := s.repeat(ctx, b.clients, b.seconds, url)
		if err != nil {
			return err
		}
		rates[i], medians[i], worst[i] = float64(len(latencies))/elapsed.Seconds(), milliseconds(latencies, 0.5), milliseconds(latencies, 0.99)
	}
	b.report.requests(name, counts[0], b.sides, rates, medians, worst)
	if slices.Max(counts) != slices.Min(counts) {
		return fmt.Errorf("%s: the answers have %d items", name, counts)
	}
	return nil
}

// count returns the number of items of an answer, 1 for an object.
func (s *side) count(ctx context.Context, url string) (int, error) {
	body, err := s.open(ctx, url)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	var answer struct {
		Kind  string
		Items []struct{}
	}
	err = json.NewDecoder(body).Decode(&answer)
	if !strings.HasSuffix(answer.Kind, "List") {
		return 1, err
	}
	return len(answer.Items), err
}

func (s *side) repeat(ctx context.Context, clients int, seconds float64, url func(*side) string) (latencies []time.Duration, elapsed time.Duration, err error) {
	var mu sync.Mutex // protects latencies
	started := time.Now()
	deadline := started.Add(time.Duration(seconds * float64(time.Second)))
	var group errgroup.Group
	for range clients {
		group.Go(func() error {
			for time.Now().Before(deadline) {
				sent := time.Now()
				body, err := s.open(ctx, url(s))
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, body)
				body.Close()
				if err != nil {
					return err
				}
				mu.Lock()
				latencies = append(latencies, time.Since(sent))
				mu.Unlock()
			}
			return nil
		})
	}
	err = group.Wait()
	return latencies, time.Since(started), err
}

func milliseconds(durations []time.Duration, quantile float64) float64 {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[int(quantile*float64(len(sorted)-1))].Seconds() * 1000
}

// fullList reads the whole list in one request.
func (b *bench) fullList(ctx context.Context) error {
	first, total, size, grown := make([]float64, len(b.sides)), make([]float64, len(b.sides)), make([]float64, len(b.sides)), make([]float64, len(b.sides))
	for i, s := range b.sides {
		progress("full list: " + s.name)
		peak := s.watchMemory(ctx)
		ttfb, elapsed, n, err := s.readAll(ctx)
		grown[i] = peak()
		first[i], total[i], size[i] = ttfb.Seconds()*1000, elapsed.Seconds(), float64(n)/(1<<20)
		if err != nil {
			// A server may have no time for it. The table says so.
			progress(fmt.Sprintf("full list: %s: after %d bytes and %v: %v", s.name, n, elapsed, err))
			total[i] = math.NaN()
		}
	}
	b.report.value("full list, first byte", "ms", "lower", b.sides, first...)
	b.report.value("full list, all of it", "s", "lower", b.sides, total...)
	b.report.value("full list, size", "MiB", "", b.sides, size...)
	b.report.value("full list, memory of the server grows by", "MiB", "lower", b.sides, grown...)
	return nil
}

// readAll reads the whole list in one request. It returns when the first byte came,
// how long all took, and the number of bytes.
func (s *side) readAll(ctx context.Context) (first, elapsed time.Duration, n int64, err error) {
	started := time.Now()
	body, err := s.open(ctx, s.path("", ""))
	if err != nil {
		return 0, time.Since(started), 0, err
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 1)); err != nil {
		return 0, time.Since(started), 0, err
	}
	first = time.Since(started)
	n, err = io.Copy(io.Discard, body)
	return first, time.Since(started), n + 1, err
}

// pagesUnderWrites reads random pages while findings change.
func (b *bench) pagesUnderWrites(ctx context.Context) error {
	achieved := make([]float64, len(b.sides))
	// The tokens of the first walk may be of revisions that are no longer kept.
	for _, s := range b.sides {
		if err := s.findTokens(ctx, s, b.corpus); err != nil {
			return err
		}
	}
	rates, medians, worst := make([]float64, len(b.sides)), make([]float64, len(b.sides)), make([]float64, len(b.sides))
	for i, s := range b.sides {
		progress("random page under writes: " + s.name)
		stop := b.startWriter(ctx, s, b.writes)
		latencies, elapsed, err := s.repeat(ctx, b.clients, 2*b.seconds, func(s *side) string { return s.page(rand.IntN(len(s.tokens))) })
		written, writeErr := stop()
		if err != nil {
			return err
		}
		if writeErr != nil {
			return writeErr
		}
		achieved[i] = float64(written) / elapsed.Seconds()
		rates[i], medians[i], worst[i] = float64(len(latencies))/elapsed.Seconds(), milliseconds(latencies, 0.5), milliseconds(latencies, 0.99)
	}
	name := fmt.Sprintf("random page of 500 under %d changes/s", b.writes)
	b.report.requests(name, pageSize, b.sides, rates, medians, worst)
	b.report.value("... and the changes that were made", "1/s", "higher", b.sides, achieved...)
	return nil
}

// startWriter changes findings at a rate, or as fast as it can, until stop is called,
// which returns how many it has changed.
func (b *bench) startWriter(ctx context.Context, s *side, rate int) (stop func() (int, error)) {
	const most = 100 // changes at a time
	ctx, cancel := context.WithCancel(ctx)
	written, next := 0, 0
	done := make(chan error, 1)
	started := time.Now()
	go func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-ticker.C:
			}
			due := min(int(time.Since(started).Seconds()*float64(rate))-written, most)
			numbers := make([]int, 0, most)
			for range due {
				numbers = append(numbers, next)
				next = (next + 1) % b.corpus.changing()
			}
			if len(numbers) == 0 {
				continue
			}
			if err := s.write(context.WithoutCancel(ctx), numbers); err != nil {
				done <- err
				return
			}
			written += len(numbers)
		}
	}()
	return func() (int, error) {
		cancel()
		err := <-done
		return written, err
	}
}
