package access

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

const (
	// maxParallel is how many questions about one user are asked at a time.
	maxParallel = 16
	// refreshes is how many times in a TTL the answers that watches rely on are looked
	// through.
	refreshes = 5
	// staleTTLs is how many TTLs old the answers may get that watches rely on, if new ones
	// cannot be had.
	staleTTLs = 3
)

// question is whether a user may get a resource.
type question struct {
	namespace, group, version, resource, subresource string
}

// unscopedIn asks for the right to see all findings of a namespace; "" stands for all.
func unscopedIn(namespace string) question {
	return question{namespace, v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version, "auditresults", "unscoped"}
}

// rbacResource is the resource as rules of RBAC have it.
func (q question) rbacResource() string {
	if q.subresource == "" {
		return q.resource
	}
	return q.resource + "/" + q.subresource
}

type answer struct {
	allowed bool
	at      time.Time
}

// subject is what is kept of a user: the last answers, to use them again and to
// notice when they change.
type subject struct {
	access *Access
	user   user.Info

	mu      sync.Mutex // protects the fields below
	answers map[question]answer
	grants  string // digest of what the narrower last said, "" if it was not asked
	// epoch names the time in which no answer has changed.
	epoch string
	// since is the revision at which the epoch began. Lists with later revisions are of
	// this epoch; one with the same revision is if listed is true.
	since  uint64
	listed bool
	// first is true until an answer has changed.
	first      bool
	watches    map[*watch]struct{}
	refreshing bool
}

// watch is a watch that ends when an answer changes.
type watch struct {
	end context.CancelCauseFunc
}

func newSubject(a *Access, info user.Info) *subject {
	return &subject{
		access:  a,
		user:    info,
		answers: map[question]answer{},
		epoch:   rand.Text(),
		since:   a.Index.Revision(),
		first:   true,
		watches: map[*watch]struct{}{},
	}
}

func (s *subject) currentEpoch() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// ask returns an answer that is not older than maxAge, and whether the authorizer was
// asked for it.
func (s *subject) ask(ctx context.Context, q question, maxAge time.Duration) (allowed, reviewed bool, err error) {
	now := s.access.Clock.Now()
	s.mu.Lock()
	known, ok := s.answers[q]
	s.mu.Unlock()
	if ok && now.Sub(known.at) < maxAge {
		s.access.metrics.hits.Inc()
		return known.allowed, false, nil
	}
	decision, _, err := s.access.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User:            s.user,
		Verb:            "get",
		Namespace:       q.namespace,
		APIGroup:        q.group,
		APIVersion:      q.version,
		Resource:        q.resource,
		Subresource:     q.subresource,
		ResourceRequest: true,
	})
	allowed = decision == authorizer.DecisionAllow
	if !allowed && err != nil {
		s.access.metrics.review("error")
		return false, true, s.unavailable(ctx, err)
	}
	s.access.metrics.review(map[bool]string{true: "allowed", false: "denied"}[allowed])
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok = s.answers[q]
	if ok && known.at.After(now) {
		return known.allowed, true, nil // somebody has asked later than this
	}
	if ok && known.allowed != allowed {
		s.changed()
	}
	s.answers[q] = answer{allowed: allowed, at: now}
	return allowed, true, nil
}

// knows tells whether there is an answer that is not older than maxAge.
func (s *subject) knows(q question, maxAge time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.answers[q]
	return ok && s.access.Clock.Since(known.at) < maxAge
}

// unavailable returns ErrUnavailable with a reason. It is logged, because users are not
// told what is wrong with the cluster's authorization.
func (s *subject) unavailable(ctx context.Context, reason error) error {
	if ctx.Err() == nil {
		klog.FromContext(ctx).Error(reason, "What a user may see cannot be determined", "user", s.user.GetName())
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, reason)
}

// granted takes note of what the narrower says.
func (s *subject) granted(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grants != "" && s.grants != digest {
		s.changed()
	}
	s.grants = digest
}

// changed begins a new epoch. The caller holds mu.
func (s *subject) changed() {
	s.epoch, s.since, s.listed, s.first = rand.Text(), s.access.Index.Revision(), false, false
	clear(s.answers) // others will have changed too
	s.endWatches(ErrChanged)
}

// endWatches ends all watches. The caller holds mu.
func (s *subject) endWatches(err error) {
	for w := range s.watches {
		w.end(err)
		s.access.metrics.ended(err)
	}
	clear(s.watches)
}

// listedAt says that a list was answered with a revision, in an epoch.
func (s *subject) listedAt(revision uint64, epoch string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch == s.epoch && revision == s.since {
		s.listed = true
	}
}

// follow has a watch end when an answer changes. If the client goes on from a
// revision, rather than from a state that the watch itself sends, the revision must
// be of this epoch.
func (s *subject) follow(w *watch, epoch string, from uint64, whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Who sees everything, as far back as is known, has most likely seen everything
	// before, in an earlier process: auditors do not list everything anew then.
	resumable := from == 0 || from > s.since || from == s.since && s.listed || whole && s.first
	if epoch != s.epoch || !resumable {
		return ErrChanged
	}
	s.watches[w] = struct{}{}
	if !s.refreshing {
		s.refreshing = true
		go s.refreshLoop()
	}
	return nil
}

// unfollow forgets a watch.
func (s *subject) unfollow(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// refreshLoop keeps the answers young while there are watches. Watches whose answers
// cannot be had for too long end.
func (s *subject) refreshLoop() {
	ttl := s.access.TTL
	ticker := s.access.Clock.NewTicker(ttl / refreshes)
	defer ticker.Stop()
	failingSince := time.Time{}
	for now := range ticker.C() {
		s.mu.Lock()
		if s.refreshing = len(s.watches) > 0; !s.refreshing {
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), ttl)
		err := s.refresh(ctx, ttl-ttl/refreshes)
		cancel()
		switch {
		case err == nil:
			failingSince = time.Time{}
		case failingSince.IsZero():
			failingSince = now
		case s.access.Clock.Since(failingSince) >= ttl:
			s.mu.Lock()
			s.endWatches(err)
			s.mu.Unlock()
		}
	}
}

// old returns the questions that were answered longer than maxAge ago, and forgets those
// about namespaces in which there have been no findings for as long as can be listed.
// narrowed is true if the narrower has been asked.
func (s *subject) old(maxAge time.Duration) (old []question, narrowed bool, err error) {
	namespaces, err := s.access.namespaces()
	if err != nil {
		return nil, false, err
	}
	now := s.access.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for q, a := range s.answers {
		if now.Sub(a.at) < maxAge {
			continue
		}
		if _, found := namespaces[q.namespace]; q.namespace != "" && !found {
			delete(s.answers, q)
			continue
		}
		old = append(old, q)
	}
	return old, s.grants != "", nil
}

// namespaces in which there is something to see, of any table.
func (a *Access) namespaces() (map[string]struct{}, error) {
	all := map[string]struct{}{}
	for _, table := range namespacedTables {
		namespaces, err := a.Index.Namespaces(table, 0)
		if err != nil {
			return nil, err
		}
		for _, namespace := range namespaces {
			all[namespace] = struct{}{}
		}
	}
	return all, nil
}

// refresh asks again what was answered longer than maxAge ago.
func (s *subject) refresh(ctx context.Context, maxAge time.Duration) error {
	old, narrowed, err := s.old(maxAge)
	if err != nil {
		return err
	}
	if narrowed {
		if _, err := s.access.grants(ctx, s); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, q := range old {
		group.Go(func() error {
			_, _, err := s.ask(ctx, q, maxAge)
			return err
		})
	}
	return group.Wait()
}

// reasonOf the end of a watch, for metrics.
func reasonOf(err error) string {
	if errors.Is(err, ErrChanged) {
		return "changed"
	}
	return "unavailable"
}
