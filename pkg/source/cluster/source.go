package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/pkg/source"
)

const (
	// DefaultQPS limits the lists and discovery requests of a
	// Source; watches are not limited. The client's own defaults of 5 and 10 are
	// meant for a controller that writes. A source only reads, and nearly all of it
	// when it starts: with a hundred kinds these would keep the last ones waiting
	// for a while. What protects the kube-apiserver is its priority and fairness,
	// and that each kind reads one page at a time, not this limit.
	DefaultQPS = 50
	// DefaultBurst is how many of these requests may be made at once.
	DefaultBurst = 100

	// backoffReset is how long listing and watching must have worked for the backoff
	// to start at its beginning again.
	backoffReset = 2 * time.Minute

	// userAgent tells the requests of the audit in audit logs and flow schemas.
	userAgent = "policy-apiserver"
)

// Options of a Source.
type Options struct {
	// QPS is the number of requests a second besides watches. 0 means DefaultQPS,
	// less than 0 means no limit.
	QPS float32
	// Burst is the number of requests that may exceed QPS for a moment. 0 means
	// DefaultBurst.
	Burst int

	// tuning is changed by tests only.
	tuning tuning
}

// tuning holds the times and sizes that tests change. The zero value of a field
// means its default.
type tuning struct {
	// pageSize is the number of objects in a page of a list.
	pageSize int64
	// backoff between attempts to list and watch.
	backoff wait.Backoff
	// watchGrace is how long a watch that cannot be resumed because the server does
	// not answer or is overloaded is retried quietly.
	watchGrace time.Duration
	// initialStall is how long the initial events of a watch may pause before the
	// server is taken for one that does not end them with a bookmark.
	initialStall time.Duration
	// settle are the times at which discovery is read after a change.
	settle []time.Duration
	// rediscover is the interval at which discovery is read without any change.
	rediscover time.Duration
}

func (t tuning) withDefaults() tuning {
	if t.pageSize == 0 {
		t.pageSize = 500
	}
	if t.backoff.Duration == 0 {
		t.backoff = wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 38, Factor: 2, Jitter: 1}
	}
	if t.watchGrace == 0 {
		t.watchGrace = 15 * time.Second
	}
	if t.initialStall == 0 {
		t.initialStall = 30 * time.Second
	}
	if t.settle == nil {
		t.settle = []time.Duration{
			200 * time.Millisecond, 500 * time.Millisecond,
			time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second, time.Minute,
		}
	}
	if t.rediscover == 0 {
		t.rediscover = 5 * time.Minute
	}
	return t
}

// Source streams the objects of a cluster. It is safe for concurrent use.
type Source struct {
	discovery *discovery.DiscoveryClient
	dynamic   dynamic.Interface
	metadata  metadata.Interface
	tuning    tuning
	changed   chan struct{}

	mu   sync.Mutex
	last *source.Inventory // protected by mu; the newest inventory read, nil if there is none
}

var _ source.Source = (*Source)(nil)

// New returns a source over the cluster that cfg leads to. It does not talk to the
// cluster yet. cfg is not changed.
func New(cfg *rest.Config, opts Options) (*Source, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = userAgent
	cfg.QPS, cfg.Burst = opts.QPS, opts.Burst
	if cfg.QPS == 0 {
		cfg.QPS = DefaultQPS
	}
	if cfg.Burst == 0 {
		cfg.Burst = DefaultBurst
	}
	// The clients share one connection and one request limit.
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	s := &Source{tuning: opts.tuning.withDefaults(), changed: make(chan struct{}, 1)}
	if s.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(cfg, httpClient); err != nil {
		return nil, fmt.Errorf("discovery client of the cluster: %w", err)
	}
	if s.dynamic, err = dynamic.NewForConfigAndClient(cfg, httpClient); err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	if s.metadata, err = metadata.NewForConfigAndClient(cfg, httpClient); err != nil {
		return nil, fmt.Errorf("metadata client of the cluster: %w", err)
	}
	return s, nil
}

// Inventory implements source.Source. It reads discovery anew.
func (s *Source) Inventory(ctx context.Context) (*source.Inventory, error) {
	inventory, _, err := s.discover(ctx)
	return inventory, err
}

// Get returns an object as it is now. namespace is empty for kinds that are in none. The
// error is the API server's.
func (s *Source) Get(ctx context.Context, kind source.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	return s.dynamic.Resource(kind.GroupVersionResource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

// ListPages hands over the objects of a kind as they are now, page by page, and keeps none of
// them. namespace is empty for all, and so is selector, of labels. The error is the API
// server's, or what page returns.
func (s *Source) ListPages(ctx context.Context, kind source.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
	resource := s.dynamic.Resource(kind.GroupVersionResource()).Namespace(namespace)
	opts := metav1.ListOptions{Limit: s.tuning.pageSize, LabelSelector: selector}
	for {
		list, err := resource.List(ctx, opts)
		if rest := restOfExpired(err); rest != "" && opts.Continue != "" {
			// The rest of the list as it is by now: each object is seen as it was at some
			// moment, which is all that is asked for.
			opts.Continue = rest
			continue
		}
		if err != nil {
			return err
		}
		objects := make([]*unstructured.Unstructured, len(list.Items))
		for i := range list.Items {
			objects[i] = &unstructured.Unstructured{Object: list.Items[i].Object}
			if err := complete(objects[i], kind); err != nil {
				return err
			}
		}
		opts.Continue = list.GetContinue()
		if err := page(objects); err != nil || opts.Continue == "" {
			return err
		}
	}
}

// restOfExpired returns the token by which a list that has expired goes on, with what
// there is by then.
func restOfExpired(err error) string {
	var status apierrors.APIStatus
	if !isExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}

// Changed implements source.Source. Without Run it never gets a value.
func (s *Source) Changed() <-chan struct{} {
	return s.changed
}
