package faults

import (
	"context"
	"maps"
	"testing"
	"time"
)

// TestRestarts kills the kube-apiserver and etcd while objects and policies change. The
// server is not restarted, and what it serves in between is never wrong.
func TestRestarts(t *testing.T) {
	cp, server := setUp(t)
	r := newRun(t, cp, server, -1)
	r.proxy.end() // there is enough trouble
	ctx := t.Context()
	r.converge(ctx, "at the beginning", r.client)
	for _, name := range []string{"kube-apiserver", "etcd", "kube-apiserver"} {
		if err := cp.Restart(name); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			r.check(ctx)
			if err := r.stepUntilDone(ctx); err != nil {
				t.Fatal(err)
			}
		}
		r.check(ctx)
		r.converge(ctx, "after "+name+" was killed", r.client)
	}
	r.compareWithFresh(ctx, server)
}

// stepUntilDone makes a change, however often that has to be tried: a kube-apiserver that
// has just started may still refuse what it allows a moment later.
func (r *run) stepUntilDone(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	objects, constraints := maps.Clone(r.objects), maps.Clone(r.constraints)
	for {
		err := r.step(ctx)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		r.objects, r.constraints = maps.Clone(objects), maps.Clone(constraints)
		time.Sleep(100 * time.Millisecond)
	}
}
