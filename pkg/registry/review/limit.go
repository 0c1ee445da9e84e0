package review

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// How many reviews that run programs of users, or over a scope, are answered at the same
// time. Each takes all cores at most, as the audit does, so that the audit keeps its
// share.
const (
	maxAtOnce        = 4
	maxAtOncePerUser = 2
	// busyRetrySeconds is when a client should ask again.
	busyRetrySeconds = 2
)

// limiter bounds how many reviews are answered at the same time.
type limiter struct {
	mu    sync.Mutex // protects the fields below
	users map[string]int
	all   int
}

func newLimiter() *limiter { return &limiter{users: map[string]int{}} }

// enter lets a user's review in. The error is a 429; otherwise leave has to be called when
// it has been answered.
func (l *limiter) enter(user string) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.users[user] == maxAtOncePerUser:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("user %q has %d reviews of candidatePolicies or a scope under way, which is as many as may be; ask again when one has been answered", user, maxAtOncePerUser), busyRetrySeconds)
	case l.all == maxAtOnce:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d reviews of candidatePolicies or a scope are under way, which is as many as may be; ask again when one has been answered", maxAtOnce), busyRetrySeconds)
	}
	l.all++
	l.users[user]++
	return func() { l.leave(user) }, nil
}

func (l *limiter) leave(user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.users[user]--; l.users[user] == 0 {
		delete(l.users, user)
	}
}
