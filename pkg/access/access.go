package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/tracing"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

var (
	// ErrUnavailable is returned when the authorizer does not answer: nothing is known
	// about what a user may see.
	ErrUnavailable = errors.New("who may see what cannot be determined at the moment")
	// ErrChanged is returned where a list or a watch cannot go on because what its user
	// may see has changed, or may have.
	ErrChanged = errors.New("what you may see has changed")
)

// DefaultTTL is how long an answer is used.
const DefaultTTL = 10 * time.Second

// maxSubjects bounds the users whose answers are kept.
const maxSubjects = 4096

// Reader of rows.
type Reader interface {
	Get(t index.Table, k index.Key, revision uint64) (*index.Row, error)
	List(ctx context.Context, q index.Query) (*index.Page, error)
}

// Index that findings are read from, and that knows which groups of them there are.
type Index interface {
	Reader
	Revision() uint64
	Namespaces(t index.Table, revision uint64) ([]string, error)
	Groups(t index.Table, namespace string, revision uint64) ([]string, error)
	AllGroups(t index.Table, revision uint64) ([]string, error)
	GroupOf(t index.Table, row *index.Row) (string, error)
}

// Resources knows the resource of a kind.
type Resources interface {
	Resource(kind schema.GroupKind) (schema.GroupVersionResource, bool)
}

// Narrower knows what is not worth asking the authorizer.
type Narrower interface {
	// Grants returns what a user may have been granted.
	Grants(user user.Info) (Grants, error)
}

// Grants are an upper bound of what a user may get. They do not change.
type Grants interface {
	// May tells whether the authorizer may allow to get a resource, which may be
	// written resource/subresource, in a namespace; "" asks for all namespaces.
	May(namespace, group, resource string) bool
	// Namespaces in which more may be allowed than in all namespaces, sorted.
	Namespaces() []string
	// Digest changes when the grants do.
	Digest() string
}

// Config of an Access.
type Config struct {
	Index Index
	// Authorizer decides. It should not keep answers itself, or they are used for
	// longer than TTL.
	Authorizer authorizer.UnconditionalAuthorizer
	Resources  Resources
	// Narrower of what is asked; nil asks everything.
	Narrower Narrower
	// TTL is how long an answer is used; 0 means DefaultTTL.
	TTL time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker
}

// Access makes views of the index for requests.
type Access struct {
	Config
	metrics *accessMetrics

	mu       sync.Mutex // protects subjects
	subjects *lru.Cache // *subject by identity
}

// New returns an Access.
func New(cfg Config) (*Access, error) {
	if cfg.Index == nil || cfg.Authorizer == nil || cfg.Resources == nil {
		return nil, errors.New("access needs an index, an authorizer and the resources of kinds")
	}
	if cfg.TTL < 0 {
		return nil, fmt.Errorf("answers are used for %v; it must not be negative", cfg.TTL)
	}
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Access{Config: cfg, metrics: processMetrics(), subjects: lru.New(maxSubjects)}, nil
}

// Scoped tells whether views of a table are narrowed. Runs, and the summaries of
// constraints, speak of the whole cluster; RBAC on the resources themselves decides about
// them.
func Scoped(table index.Table) bool {
	return slices.Contains(namespacedTables, table) || slices.Contains(clusterTables, table)
}

// Tables whose views are narrowed, by the namespace of their rows or as a whole.
var (
	namespacedTables = []index.Table{rows.AuditResults, rows.AuditSummaries, rows.AuditChanges}
	clusterTables    = []index.Table{rows.ClusterAuditResults, rows.ClusterAuditChanges}
)

// View returns what the user of a request may see of a table. It returns
// ErrUnavailable if that cannot be determined.
func (a *Access) View(ctx context.Context, table index.Table) (*View, error) {
	if !Scoped(table) {
		return Whole(a.Index, table), nil
	}
	ctx, span := tracing.Start(ctx, spanView, attribute.String("resource", string(table)))
	defer span.End(slowDecision)
	v, err := a.view(ctx, table)
	span.RecordError(err)
	a.metrics.viewed(v, err)
	return v, err
}

func (a *Access) view(ctx context.Context, table index.Table) (*View, error) {
	info, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, fmt.Errorf("%w: the request has no user", ErrUnavailable)
	}
	s, err := a.subject(info)
	if err != nil {
		return nil, err
	}
	v := &View{rows: a.Index, access: a, table: table, subject: s}
	if v.whole, err = v.ask(ctx, unscopedIn("")); err != nil {
		return nil, err
	}
	if !v.whole && a.Narrower != nil {
		if v.grants, err = a.grants(ctx, s); err != nil {
			return nil, err
		}
	}
	v.epoch = s.currentEpoch()
	return v, nil
}

// grants of a user. It takes note if they have changed.
func (a *Access) grants(ctx context.Context, s *subject) (Grants, error) {
	grants, err := a.Narrower.Grants(s.user)
	if err != nil {
		return nil, s.unavailable(ctx, err)
	}
	s.granted(grants.Digest())
	return grants, nil
}

// subject returns what is kept of a user.
func (a *Access) subject(info user.Info) (*subject, error) {
	identity, err := identityOf(info)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, ok := a.subjects.Get(identity); ok {
		if s, ok := known.(*subject); ok {
			return s, nil
		}
	}
	s := newSubject(a, info)
	a.subjects.Add(identity, s)
	return s, nil
}

// identityOf returns everything about a user that an authorizer may look at.
func identityOf(info user.Info) (string, error) {
	groups := slices.Clone(info.GetGroups())
	slices.Sort(groups)
	identity, err := json.Marshal([]any{info.GetName(), info.GetUID(), groups, info.GetExtra()})
	if err != nil {
		return "", fmt.Errorf("identity of user %s: %w", info.GetName(), err)
	}
	return string(identity), nil
}
