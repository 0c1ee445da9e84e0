package review

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// Limits of an impact.
const (
	maxCounts    = 1000
	maxNotJudged = 200
)

// impact is the answer as to a scope, while it is made. All of it is used by one
// goroutine, but for what workers do with an object.
type impact struct {
	e     *evaluation
	limit int
	out   v1alpha1.ReviewImpact

	kinds       map[schema.GroupKind]*v1alpha1.ReviewCount
	counts      map[countKey]*v1alpha1.ReviewCount
	constraints map[*policy.Constraint]*v1alpha1.ReviewConstraintCount
	order       []*policy.Constraint
	leftOut     int // beyond maxNotJudged
}

type countKey struct {
	namespace string
	kind      schema.GroupKind
}

func newImpact(e *evaluation, constraints []*policy.Constraint) *impact {
	i := &impact{
		e:           e,
		limit:       defaultLimit,
		kinds:       map[schema.GroupKind]*v1alpha1.ReviewCount{},
		counts:      map[countKey]*v1alpha1.ReviewCount{},
		constraints: map[*policy.Constraint]*v1alpha1.ReviewConstraintCount{},
		order:       constraints,
	}
	if limit := e.Spec.Scope.Limit; limit != nil {
		i.limit = int(*limit)
	}
	for _, c := range constraints {
		i.constraints[c] = &v1alpha1.ReviewConstraintCount{Constraint: constraintReference(c), EnforcementActions: c.ActionsAt(e.point)}
	}
	return i
}

// leaveOut says that objects are not judged.
func (i *impact) leaveOut(what v1alpha1.ReviewNotJudged) {
	if len(i.out.NotJudged) == maxNotJudged {
		i.leftOut++
		return
	}
	what.Message = cut(what.Message, maxMessageBytes)
	i.out.NotJudged = append(i.out.NotJudged, what)
}

// batch is a page of a list, or what became of the list.
type batch struct {
	listing *listing
	objects []*unstructured.Unstructured
	// ended is true if there are no more pages, err why that is too early.
	ended bool
	err   error
}

// judge lists and judges, a page while the next one is read, until ctx is done.
func (i *impact) judge(ctx context.Context, selector string, lists []listing) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches := make(chan batch)
	go func() {
		defer close(batches)
		for n := range lists {
			l := &lists[n]
			err := i.e.Reader.List(ctx, l.kind, l.namespace, selector, func(page []*unstructured.Unstructured) error {
				select {
				case batches <- batch{listing: l, objects: page}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			select {
			case batches <- batch{listing: l, ended: true, err: err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	done := 0 // lists that were judged to their end
	for b := range batches {
		if !b.ended {
			i.judgePage(ctx, b.listing, b.objects)
		}
		if ctx.Err() != nil {
			break
		}
		if b.ended {
			if b.err != nil {
				i.leaveOut(b.listing.notJudged(v1alpha1.NotJudgedUnlisted, fmt.Sprintf("they cannot be listed, or not all of them: %v", b.err)))
			}
			i.countOf(b.listing.kind.GroupKind()) // also if there are none
			done++
		}
	}
	for n := range lists[done:] {
		l := &lists[done+n]
		message := "the time of the request was up before they were judged; judge a smaller scope, or give the request more time"
		if count := i.kinds[l.kind.GroupKind()]; count != nil && n == 0 {
			message = fmt.Sprintf("the time of the request was up after %d objects of the kind; judge a smaller scope, or give the request more time", count.Objects)
		}
		i.leaveOut(l.notJudged(v1alpha1.NotJudgedDeadline, message))
	}
}

// judgePage judges objects on all cores, and takes the verdicts in their order.
func (i *impact) judgePage(ctx context.Context, l *listing, objects []*unstructured.Unstructured) {
	subjects := make([]subject, len(objects))
	namespaces := make([]namespaceOf, len(objects))
	for n, obj := range objects {
		subjects[n] = subject{kind: l.kind, object: obj}
		namespaces[n] = i.e.namespaceOf(ctx, &subjects[n])
	}
	verdicts := make([][]policy.Verdict, len(objects))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(objects)) {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(objects); n = int(next.Add(1)) - 1 {
				found := i.judgeObject(ctx, &subjects[n], namespaces[n], l.constraints)
				if ctx.Err() != nil {
					return // it may have been cut short
				}
				verdicts[n] = found
			}
		})
	}
	workers.Wait()
	for n := range objects {
		if verdicts[n] == nil {
			return // ctx is done: the first objects are judged, as in a list that ends
		}
		i.take(l, &subjects[n], verdicts[n])
		objects[n], subjects[n] = nil, subject{}
	}
}

// judgeObject judges an object as the audit does. A fault of the engine costs this object
// only.
func (i *impact) judgeObject(ctx context.Context, s *subject, namespace namespaceOf, constraints []*policy.Constraint) (verdicts []policy.Verdict) {
	defer func() {
		if r := recover(); r != nil {
			verdicts = nil
			for _, c := range constraints {
				verdicts = append(verdicts, policy.Verdict{Constraint: c, Outcome: policy.Error, Message: fmt.Sprintf("judging it panicked: %v", r), EnforcementAction: c.EnforcementAction})
			}
		}
	}()
	return i.e.review(ctx, namespace, constraints, func(namespace *unstructured.Unstructured) *policy.Object {
		return policy.NewObject(s.kind, s.object, namespace)
	})
}

// countOf a kind.
func (i *impact) countOf(gk schema.GroupKind) *v1alpha1.ReviewCount {
	count := i.kinds[gk]
	if count == nil {
		count = &v1alpha1.ReviewCount{APIGroup: gk.Group, Kind: gk.Kind}
		i.kinds[gk] = count
	}
	return count
}

// take enters the verdicts on an object into the answer.
func (i *impact) take(l *listing, s *subject, verdicts []policy.Verdict) {
	i.out.Objects++
	gk := l.kind.GroupKind()
	kind := i.countOf(gk)
	kind.Objects++
	var found v1alpha1.ReviewTotals
	for n := range verdicts {
		v := &verdicts[n]
		result := resultOf(v.Outcome)
		i.e.count(result, slices.Contains(v.ActionsAt(i.e.point), actionDeny))
		constraint := i.constraints[v.Constraint]
		switch result {
		case v1alpha1.ReviewNotMatched:
			continue
		case v1alpha1.ReviewDeferred:
		default:
			constraint.Evaluated++
		}
		one := totalsOf(result)
		add(&found, one)
		one.FailedObjects = one.Failed
		add(&constraint.ReviewTotals, one)
		if result != v1alpha1.ReviewPass && len(i.e.status.Verdicts) < i.limit {
			i.e.status.Verdicts = append(i.e.status.Verdicts, i.e.verdict(s, nil, v, result))
		}
	}
	found.FailedObjects = min(found.Failed, 1)
	add(&kind.ReviewTotals, found)
	i.takeCount(countKey{s.object.GetNamespace(), gk}, found)
}

// takeCount counts by namespace and kind.
func (i *impact) takeCount(key countKey, found v1alpha1.ReviewTotals) {
	count := i.counts[key]
	if count == nil {
		count = &v1alpha1.ReviewCount{Namespace: key.namespace, APIGroup: key.kind.Group, Kind: key.kind.Kind}
		i.counts[key] = count
	}
	count.Objects++
	add(&count.ReviewTotals, found)
}

func totalsOf(result v1alpha1.ReviewResult) v1alpha1.ReviewTotals {
	switch result {
	case v1alpha1.ReviewFail:
		return v1alpha1.ReviewTotals{Failed: 1}
	case v1alpha1.ReviewError:
		return v1alpha1.ReviewTotals{Errors: 1}
	case v1alpha1.ReviewDeferred:
		return v1alpha1.ReviewTotals{Deferred: 1}
	}
	return v1alpha1.ReviewTotals{}
}

func add(to *v1alpha1.ReviewTotals, more v1alpha1.ReviewTotals) {
	to.FailedObjects += more.FailedObjects
	to.Failed += more.Failed
	to.Errors += more.Errors
	to.Deferred += more.Deferred
}

// finish makes the answer complete, as far as it goes.
func (i *impact) finish() {
	for _, count := range i.kinds {
		i.out.Kinds = append(i.out.Kinds, *count)
	}
	for _, count := range i.counts {
		if count.Failed+count.Errors+count.Deferred > 0 {
			i.out.Counts = append(i.out.Counts, *count)
		}
	}
	sortCounts(i.out.Kinds)
	sortCounts(i.out.Counts)
	if more := len(i.out.Counts) - maxCounts; more > 0 {
		i.out.Counts = i.out.Counts[:maxCounts]
		i.e.addNote(fmt.Sprintf("there are %d more namespaces and kinds in which something was found; the kinds count them too", more))
	}
	for _, c := range i.order {
		i.out.Constraints = append(i.out.Constraints, *i.constraints[c])
	}
	if i.leftOut > 0 {
		i.e.addNote(fmt.Sprintf("there are %d more entries of what was not judged", i.leftOut))
	}
	if listed, all := len(i.e.status.Verdicts), i.e.status.Failed+i.e.status.Errors+i.e.status.Deferred; int64(listed) < all {
		i.e.addNote(fmt.Sprintf("the first %d of %d findings are listed", listed, all))
	}
	i.out.Complete = len(i.out.NotJudged) == 0
	i.e.status.Allowed = i.e.status.Allowed && i.out.Complete
	i.e.status.Impact = &i.out
}

func sortCounts(counts []v1alpha1.ReviewCount) {
	slices.SortFunc(counts, func(a, b v1alpha1.ReviewCount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.APIGroup, b.APIGroup), cmp.Compare(a.Kind, b.Kind))
	})
}
