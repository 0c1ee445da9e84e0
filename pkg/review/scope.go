package review

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// Limits of a scope.
const (
	defaultLimit       = 100
	maxLimit           = 1000
	maxScopeKinds      = 100
	maxScopeNamespaces = 100
	// maxQuestions is how many rights of who asks are asked for, about, if they may not
	// list a kind in all namespaces.
	maxQuestions = 2000
	// questionsAtOnce is how many of these are under way at the same time.
	questionsAtOnce = 8
)

// listing is a list of objects to be judged.
type listing struct {
	kind policy.Kind
	// namespace is empty for all.
	namespace   string
	constraints []*policy.Constraint
}

func (l *listing) notJudged(reason v1alpha1.ReviewNotJudgedReason, message string) v1alpha1.ReviewNotJudged {
	return v1alpha1.ReviewNotJudged{APIGroup: l.kind.Group, Kind: l.kind.Kind, Namespace: l.namespace, Reason: reason, Message: message}
}

// judgeScope judges the objects of the scope. The error is an *InvalidError, or that of a
// context that was canceled: one whose time is up ends the answer.
func (e *evaluation) judgeScope(ctx context.Context, constraints []*policy.Constraint) error {
	i := newImpact(e, constraints)
	targets, errs := e.targets(i, constraints)
	if len(errs) > 0 {
		return &InvalidError{errs}
	}
	selector := metav1.FormatLabelSelector(e.Spec.Scope.LabelSelector)
	if e.Spec.Scope.LabelSelector == nil {
		selector = ""
	}
	i.judge(ctx, selector, e.listings(ctx, i, targets))
	if ctx.Err() == context.Canceled {
		return context.Cause(ctx)
	}
	i.finish()
	return nil
}

// targets returns the kinds of the scope, with the constraints that select them.
func (e *evaluation) targets(i *impact, constraints []*policy.Constraint) ([]listing, field.ErrorList) {
	path := field.NewPath("spec", "scope")
	if e.Reader == nil {
		return nil, field.ErrorList{field.Forbidden(path, "there are no live objects here")}
	}
	var errs field.ErrorList
	for n, name := range e.Spec.Scope.Namespaces {
		if e.Namespace != "" && name != e.Namespace {
			errs = append(errs, field.Invalid(path.Child("namespaces").Index(n), name, "a LocalReview is for objects in its namespace, "+e.Namespace))
		}
	}
	kinds, problems := e.scopeKinds(path.Child("kinds"))
	if errs = append(errs, problems...); len(errs) > 0 {
		return nil, errs
	}
	var targets []listing
	outside := false
	for _, kind := range kinds {
		target := listing{kind: kind}
		for _, c := range constraints {
			if c.SelectsKind(kind) {
				target.constraints = append(target.constraints, c)
			}
		}
		switch {
		case len(target.constraints) == 0 && len(e.Spec.Scope.Kinds) > 0:
			e.addNote(fmt.Sprintf("no constraint selects the kind %s of %s", kind.Kind, kind.GroupVersion()))
		case len(target.constraints) == 0:
		case !kind.Namespaced && e.inNamespaces():
			outside = true
		default:
			targets = append(targets, target)
		}
	}
	if outside {
		e.addNote("objects that are in no namespace are outside the scope, though constraints select some")
	}
	if _, _, failed := e.policies.Kinds(); len(e.Spec.Scope.Kinds) == 0 {
		for _, group := range slices.Sorted(maps.Keys(failed)) {
			if slices.ContainsFunc(constraints, func(c *policy.Constraint) bool { return c.SelectsGroup(group) }) {
				i.leaveOut(v1alpha1.ReviewNotJudged{APIGroup: group, Reason: v1alpha1.NotJudgedUnlisted, Message: fmt.Sprintf("the kinds of the API group are not known at the moment: %v", failed[group])})
			}
		}
	}
	return targets, nil
}

// inNamespaces tells whether the scope is some namespaces.
func (e *evaluation) inNamespaces() bool {
	return e.Namespace != "" || len(e.Spec.Scope.Namespaces) > 0
}

// scopeKinds returns the kinds that the scope names, or all, by group and kind.
func (e *evaluation) scopeKinds(path *field.Path) ([]policy.Kind, field.ErrorList) {
	var kinds []policy.Kind
	var errs field.ErrorList
	for i, wanted := range e.Spec.Scope.Kinds {
		kind, ok, err := e.policies.Kind(schema.GroupKind{Group: wanted.APIGroup, Kind: wanted.Kind})
		switch {
		case err != nil:
			errs = append(errs, field.InternalError(path.Index(i), err))
		case !ok:
			errs = append(errs, field.Invalid(path.Index(i).Child("kind"), wanted.Kind, fmt.Sprintf("there is no kind %s in the API group %q that can be listed", wanted.Kind, wanted.APIGroup)))
		case !kind.Namespaced && e.inNamespaces():
			errs = append(errs, field.Invalid(path.Index(i).Child("kind"), wanted.Kind, "its objects are in no namespace, and the scope is some namespaces; leave out the one or the other"))
		default:
			kinds = append(kinds, kind)
		}
	}
	if len(e.Spec.Scope.Kinds) == 0 {
		preferred, _, _ := e.policies.Kinds()
		kinds = slices.Clone(preferred)
	}
	slices.SortFunc(kinds, func(a, b policy.Kind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind))
	})
	return kinds, errs
}

// listings returns the lists of kinds that who asks may make, and says of the others that
// they are not judged.
func (e *evaluation) listings(ctx context.Context, i *impact, targets []listing) []listing {
	namespaces := e.Spec.Scope.Namespaces
	if e.Namespace != "" {
		namespaces = []string{e.Namespace}
	}
	namespaces = slices.Compact(slices.Sorted(slices.Values(namespaces)))
	if len(namespaces) > 0 {
		return e.allowedIn(ctx, i, targets, namespaces)
	}
	var out, refused []listing
	for n, err := range e.ask(ctx, targets) {
		switch {
		case err == nil:
			out = append(out, targets[n])
		case targets[n].kind.Namespaced:
			refused = append(refused, targets[n])
		default:
			i.leaveOut(targets[n].notJudged(v1alpha1.NotJudgedForbidden, err.Error()))
		}
	}
	if len(refused) > 0 {
		out = append(out, e.whereAllowed(ctx, i, refused)...)
		slices.SortStableFunc(out, func(a, b listing) int {
			return cmp.Or(cmp.Compare(a.kind.Group, b.kind.Group), cmp.Compare(a.kind.Kind, b.kind.Kind), cmp.Compare(a.namespace, b.namespace))
		})
	}
	return out
}

// allowedIn returns the lists in some namespaces that who asks may make.
func (e *evaluation) allowedIn(ctx context.Context, i *impact, targets []listing, namespaces []string) []listing {
	all := in(targets, namespaces)
	var out []listing
	for n, err := range e.ask(ctx, all) {
		if err != nil {
			i.leaveOut(all[n].notJudged(v1alpha1.NotJudgedForbidden, err.Error()))
			continue
		}
		out = append(out, all[n])
	}
	return out
}

func in(targets []listing, namespaces []string) []listing {
	var out []listing
	for _, target := range targets {
		for _, namespace := range namespaces {
			target.namespace = namespace
			out = append(out, target)
		}
	}
	return out
}

// whereAllowed finds the namespaces in which who asks may list kinds. The others are named
// only to those who may list Namespaces.
func (e *evaluation) whereAllowed(ctx context.Context, i *impact, targets []listing) []listing {
	namespaces := e.policies.Namespaces()
	if n := len(targets) * len(namespaces); n > maxQuestions {
		for _, target := range targets {
			i.leaveOut(target.notJudged(v1alpha1.NotJudgedForbidden, "you may not list them in all namespaces, and there are too many to find out in which you may; name some in spec.scope.namespaces"))
		}
		return nil
	}
	if e.allowed(ctx, Reading{Verb: "list", Kind: policy.Kind{GroupVersionKind: namespaceKind.WithVersion("v1"), Resource: "namespaces"}}) == nil {
		return e.allowedIn(ctx, i, targets, namespaces)
	}
	var out []listing
	for _, target := range targets {
		all := in([]listing{target}, namespaces)
		n := len(out)
		for at, err := range e.ask(ctx, all) {
			if err == nil {
				out = append(out, all[at])
			}
		}
		if len(out)-n < len(all) {
			i.leaveOut(target.notJudged(v1alpha1.NotJudgedForbidden, "you may list them in some namespaces only, or in none"))
		}
	}
	return out
}

// ask returns why who asks may not make lists, nil for those that they may make.
func (e *evaluation) ask(ctx context.Context, lists []listing) []error {
	errs := make([]error, len(lists))
	group := errgroup.Group{}
	group.SetLimit(questionsAtOnce)
	for i := range lists {
		group.Go(func() error {
			errs[i] = e.allowed(ctx, Reading{Verb: "list", Kind: lists[i].kind, Namespace: lists[i].namespace})
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	return errs
}

// validateScope checks a scope as far as it takes no knowledge of kinds.
func validateScope(path *field.Path, scope *v1alpha1.ReviewScope) field.ErrorList {
	if scope == nil {
		return nil
	}
	var errs field.ErrorList
	if n := len(scope.Kinds); n > maxScopeKinds {
		errs = append(errs, field.TooMany(path.Child("kinds"), n, maxScopeKinds))
	}
	seen := map[v1alpha1.ReviewKind]bool{}
	for i, kind := range scope.Kinds {
		errs = append(errs, required(path.Child("kinds").Index(i).Child("kind"), kind.Kind)...)
		if seen[kind] {
			errs = append(errs, field.Duplicate(path.Child("kinds").Index(i), kind.Kind))
		}
		seen[kind] = true
	}
	if n := len(scope.Namespaces); n > maxScopeNamespaces {
		errs = append(errs, field.TooMany(path.Child("namespaces"), n, maxScopeNamespaces))
	}
	for i, namespace := range scope.Namespaces {
		errs = append(errs, required(path.Child("namespaces").Index(i), namespace)...)
	}
	if scope.LabelSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(scope.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("labelSelector"))...)
	}
	if n := scope.Limit; n != nil && (*n < 0 || *n > maxLimit) {
		errs = append(errs, field.Invalid(path.Child("limit"), *n, fmt.Sprintf("it has to be between 0 and %d", maxLimit)))
	}
	return errs
}
