package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
	"policy.example.io/policy-apiserver/test/framework"
)

// ours is this server.
type ours struct {
	*cluster
	instance *framework.Instance
	client   *versioned.Clientset
	started  time.Time
	cancel   context.CancelFunc

	mu   sync.Mutex
	seen map[string]time.Time // probes
}

func (o *ours) name() string { return "this server" }

func (o *ours) start(_ context.Context, p *proxy) (int, error) {
	dir, err := os.MkdirTemp(o.Dir, "ours-")
	if err != nil {
		return 0, err
	}
	if o.instance, err = o.server.NewInstance(dir, p.URL); err != nil {
		return 0, err
	}
	if o.client, err = versioned.NewForConfig(o.instance.Config); err != nil {
		return 0, err
	}
	o.started = time.Now()
	if err := o.instance.Start(); err != nil {
		return 0, err
	}
	return o.instance.PID(), nil
}

func (o *ours) stop() {
	if o.cancel != nil {
		o.cancel()
	}
	o.instance.Stop()
}

// complete waits until all summaries are of the cluster.
func (o *ours) complete(ctx context.Context) (time.Duration, error) {
	for {
		list, err := o.client.PolicyV1alpha1().ConstraintSummaries().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 && allCurrent(list) {
			break
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	took := time.Since(o.started)
	return took, o.watch(ctx)
}

func allCurrent(list *v1alpha1.ConstraintSummaryList) bool {
	for i := range list.Items {
		if list.Items[i].State != v1alpha1.SummaryCurrent {
			return false
		}
	}
	return true
}

// watch notes when probes are seen.
func (o *ours) watch(ctx context.Context) error {
	ctx, o.cancel = context.WithCancel(ctx)
	o.seen = map[string]time.Time{}
	results := o.client.PolicyV1alpha1().AuditResults("")
	list, err := results.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	watch, err := results.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "constraint.name=" + probeConstraint})
	if err != nil {
		return err
	}
	go func() {
		for event := range watch.ResultChan() {
			if r, ok := event.Object.(*v1alpha1.AuditResult); ok {
				o.mu.Lock()
				if _, known := o.seen[r.Resource.Name]; !known {
					o.seen[r.Resource.Name] = time.Now()
				}
				o.mu.Unlock()
			}
		}
	}()
	return nil
}

func (o *ours) delays(ctx context.Context) ([]time.Duration, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(5 * time.Second):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []time.Duration
	for name, at := range o.probes {
		seen, ok := o.seen[name]
		if !ok {
			return nil, fmt.Errorf("%s has not been seen within %v", name, time.Since(at))
		}
		out = append(out, seen.Sub(at))
	}
	return out, nil
}
