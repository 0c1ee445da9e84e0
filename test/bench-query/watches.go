package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// informersSync starts informers, each of one namespace, until all have synced.
func (b *bench) informersSync(ctx context.Context) error {
	n := min(b.informers, b.corpus.namespaces)
	seconds := make([]float64, len(b.sides))
	for i, s := range b.sides {
		progress("informers: " + s.name)
		running, stop := context.WithCancel(ctx)
		started := time.Now()
		var synced []cache.InformerSynced
		for k := range n {
			namespace := b.corpus.namespace(k * (b.corpus.objects / n))
			informer := dynamicinformer.NewFilteredDynamicInformer(s.dynamic, s.resource, namespace, 0, cache.Indexers{}, nil).Informer()
			go informer.RunWithContext(running)
			synced = append(synced, informer.HasSynced)
		}
		ok := cache.WaitForCacheSync(running.Done(), synced...)
		seconds[i] = time.Since(started).Seconds()
		stop()
		if !ok {
			return fmt.Errorf("%s: the informers do not sync", s.name)
		}
	}
	b.report.value(fmt.Sprintf("%d informers of a namespace each, synced after", n), "s", "lower", b.sides, seconds...)
	return nil
}

// fanOut watches everything many times while findings change, and takes the time from
// before a change is written until a client has it.
func (b *bench) fanOut(ctx context.Context) error {
	for _, load := range []struct{ watches, rate int }{{b.watches, max(b.writes/20, 1)}, {max(b.watches/10, 1), b.writes}} {
		medians, worst, share := make([]float64, len(b.sides)), make([]float64, len(b.sides)), make([]float64, len(b.sides))
		name := fmt.Sprintf("%d watches, %d changes/s", load.watches, load.rate)
		for i, s := range b.sides {
			progress(name + ": " + s.name)
			latencies, written, err := b.follow(ctx, s, load.watches, load.rate)
			if err != nil {
				return err
			}
			medians[i], worst[i] = milliseconds(latencies, 0.5), milliseconds(latencies, 0.99)
			share[i] = 100 * float64(written) / (2 * b.seconds * float64(load.rate))
			if len(latencies) != written*load.watches {
				return fmt.Errorf("%s: %s: %d events of %d changes for %d watches", name, s.name, len(latencies), written, load.watches)
			}
		}
		b.report.value(name+": from change to client, p50", "ms", "lower", b.sides, medians...)
		b.report.value(name+": from change to client, p99", "ms", "lower", b.sides, worst...)
		b.report.value(name+": changes that the writer kept up with", "%", "", b.sides, share...)
	}
	return nil
}

// follow returns the latencies of all events of all watches, and the number of changes.
func (b *bench) follow(ctx context.Context, s *side, watches, rate int) ([]time.Duration, int, error) {
	list, err := s.dynamic.Resource(s.resource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, 0, err
	}
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	var c collector
	for range watches {
		body, err := s.watch(watching, list.GetResourceVersion())
		if err != nil {
			return nil, 0, err
		}
		go func() {
			revision := list.GetResourceVersion()
			for watching.Err() == nil {
				revision = c.read(body, revision)
				body.Close()
				// A server may end a watch that it finds too slow; a client goes on from where it
				// is.
				if body, err = s.watch(watching, revision); err != nil {
					return // which the number of events tells
				}
				c.resumed.Add(1)
			}
		}()
	}
	stop := b.startWriter(ctx, s, rate)
	select {
	case <-time.After(time.Duration(2 * b.seconds * float64(time.Second))):
	case <-ctx.Done():
	}
	written, err := stop()
	if err != nil {
		return nil, 0, err
	}
	// What is still on its way belongs to the result as well.
	for deadline := time.Now().Add(20 * time.Second); c.events.Load() < int64(written*watches) && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	if resumed := c.resumed.Load(); resumed > 0 {
		progress(fmt.Sprintf("%d watches were ended by the server and resumed", resumed))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latencies, written, nil
}

func (s *side) watch(ctx context.Context, revision string) (io.ReadCloser, error) {
	return s.open(ctx, s.path("", "?watch=true&timeoutSeconds=600&resourceVersion="+revision))
}

// collector collects the events of many watches.
type collector struct {
	mu              sync.Mutex // protects latencies
	latencies       []time.Duration
	events, resumed atomic.Int64
}

// read takes the events of a watch until it ends, and returns the last revision.
func (c *collector) read(body io.Reader, revision string) string {
	for lines := bufio.NewReaderSize(body, 64<<10); ; {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return revision
		}
		// The resourceVersion of the object is in front of that of what it is about.
		if last, ok := between(line, `"resourceVersion":"`, `"`); ok {
			revision = last
		}
		digits, _ := between(line, changed, ".")
		at, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			continue
		}
		latency := time.Since(time.Unix(0, at))
		c.mu.Lock()
		c.latencies = append(c.latencies, latency)
		c.mu.Unlock()
		c.events.Add(1)
	}
}

// between returns what is between two texts.
func between(line []byte, before, after string) (string, bool) {
	_, rest, found := bytes.Cut(line, []byte(before))
	text, _, ended := bytes.Cut(rest, []byte(after))
	return string(text), found && ended
}
