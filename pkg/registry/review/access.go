package review

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	engine "policy.example.io/policy-apiserver/pkg/review"
)

var errNoUser = errors.New("the request has no user")

// user returns who makes the request that is reviewed: who asks, or somebody else, whom
// they may impersonate.
func (r *REST) user(ctx context.Context, wanted *v1alpha1.ReviewUser) (policy.User, error) {
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return policy.User{}, apierrors.NewInternalError(errNoUser)
	}
	if wanted == nil || isRequester(requester, wanted) {
		return policy.User{Name: requester.GetName(), UID: requester.GetUID(), Groups: requester.GetGroups(), Extra: requester.GetExtra()}, nil
	}
	for _, a := range impersonations(wanted) {
		a.User, a.Verb, a.ResourceRequest = requester, "impersonate", true
		if err := r.authorize(ctx, a); err != nil {
			return policy.User{}, err
		}
	}
	return policy.User{Name: wanted.Username, UID: wanted.UID, Groups: impersonatedGroups(wanted), Extra: wanted.Extra}, nil
}

func isRequester(requester user.Info, wanted *v1alpha1.ReviewUser) bool {
	return requester.GetName() == wanted.Username && requester.GetUID() == wanted.UID &&
		sameSet(requester.GetGroups(), impersonatedGroups(wanted)) &&
		maps.EqualFunc(requester.GetExtra(), wanted.Extra, slices.Equal[[]string])
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}

// impersonations are the rights that the kube-apiserver asks for when a request
// impersonates a user by headers, without the verb.
func impersonations(wanted *v1alpha1.ReviewUser) []authorizer.AttributesRecord {
	const authentication, version = "authentication.k8s.io", "v1"
	first := authorizer.AttributesRecord{APIVersion: version, Resource: "users", Name: wanted.Username}
	if namespace, name, err := serviceaccount.SplitUsername(wanted.Username); err == nil {
		first = authorizer.AttributesRecord{APIVersion: version, Resource: "serviceaccounts", Namespace: namespace, Name: name}
	}
	out := []authorizer.AttributesRecord{first}
	for _, group := range wanted.Groups {
		out = append(out, authorizer.AttributesRecord{APIVersion: version, Resource: "groups", Name: group})
	}
	for _, key := range slices.Sorted(maps.Keys(wanted.Extra)) {
		for _, value := range wanted.Extra[key] {
			out = append(out, authorizer.AttributesRecord{APIGroup: authentication, APIVersion: version, Resource: "userextras", Subresource: key, Name: value})
		}
	}
	if wanted.UID != "" {
		out = append(out, authorizer.AttributesRecord{APIGroup: authentication, APIVersion: version, Resource: "uids", Name: wanted.UID})
	}
	return out
}

// impersonatedGroups are those that the kube-apiserver gives a user who is impersonated.
func impersonatedGroups(wanted *v1alpha1.ReviewUser) []string {
	groups := slices.Clone(wanted.Groups)
	if namespace, _, err := serviceaccount.SplitUsername(wanted.Username); err == nil && len(groups) == 0 {
		groups = serviceaccount.MakeGroupNames(namespace)
	}
	everybody := user.AllAuthenticated
	if wanted.Username == user.Anonymous {
		everybody = user.AllUnauthenticated
	}
	if !slices.Contains(groups, everybody) && !slices.Contains(groups, user.AllUnauthenticated) {
		groups = append(groups, everybody)
	}
	return groups
}

// live reads what a reference refers to, nil if there is none. namespace is that of a
// LocalReview.
func (r *REST) live(ctx context.Context, policies engine.Policies, ref *v1alpha1.ReviewResource, namespace string) (*unstructured.Unstructured, error) {
	if ref == nil {
		return nil, nil
	}
	path := field.NewPath("spec", "resource")
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || gv.Version == "" {
		return nil, r.invalid(field.ErrorList{field.Invalid(path.Child("apiVersion"), ref.APIVersion, "it has to be VERSION or GROUP/VERSION")})
	}
	kind, ok, err := policies.Kind(gv.WithKind(ref.Kind).GroupKind())
	switch {
	case err != nil:
		return nil, r.invalid(field.ErrorList{field.InternalError(path.Child("kind"), err)})
	case !ok:
		return nil, r.invalid(field.ErrorList{field.Invalid(path.Child("kind"), ref.Kind, "there is no kind "+ref.Kind+" in "+gv.String()+" that can be listed")})
	}
	kind.Version = gv.Version
	if namespace, err = r.namespaceOf(path, kind, ref, namespace); err != nil {
		return nil, err
	}
	requester, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errNoUser)
	}
	if err := r.authorize(ctx, authorizer.AttributesRecord{
		User: requester, Verb: "get", ResourceRequest: true,
		APIGroup: kind.Group, APIVersion: kind.Version, Resource: kind.Resource, Namespace: namespace, Name: ref.Name,
	}); err != nil {
		return nil, err
	}
	return r.backend.Read(ctx, kind, namespace, ref.Name)
}

// namespaceOf returns the namespace of a reference.
func (r *REST) namespaceOf(path *field.Path, kind policy.Kind, ref *v1alpha1.ReviewResource, local string) (string, error) {
	switch {
	case !kind.Namespaced && local != "":
		return "", r.invalid(field.ErrorList{field.Invalid(path.Child("kind"), ref.Kind, "a LocalReview is for objects in its namespace, and this kind is in none")})
	case !kind.Namespaced:
		return "", nil
	case local != "" && ref.Namespace != "" && ref.Namespace != local:
		return "", r.invalid(field.ErrorList{field.Invalid(path.Child("namespace"), ref.Namespace, "a LocalReview is for objects in its namespace, "+local)})
	}
	return cmp.Or(ref.Namespace, local, metav1.NamespaceDefault), nil
}

// authorize returns 403 unless a user may do something.
func (r *REST) authorize(ctx context.Context, a authorizer.AttributesRecord) error {
	decision, reason, err := r.backend.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		// Whether they may is not known; that is no answer either.
		return apierrors.NewInternalError(err)
	}
	resource := schema.GroupResource{Group: a.APIGroup, Resource: a.Resource}
	if a.Subresource != "" {
		resource.Resource += "/" + a.Subresource
	}
	text := "user \"" + a.User.GetName() + "\" cannot " + a.Verb + " it"
	if a.Namespace != "" {
		text += " in the namespace \"" + a.Namespace + "\""
	}
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(resource, a.Name, errors.New(text))
}
