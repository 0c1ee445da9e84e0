package readonly

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/index"
)

const (
	// futureTimeout is how long a request waits for a revision that has not been
	// written yet, as kube-apiserver's watch cache does.
	futureTimeout = 3 * time.Second
	// futureRetrySeconds is when a client should ask again after that.
	futureRetrySeconds = 1
	// notReadyRetrySeconds is when a client should ask again for what is not ready.
	notReadyRetrySeconds = 2
)

// toAPIError is the one place where errors of the index, and of the access to it, become
// errors of the API.
func toAPIError(err error, resource schema.GroupResource, name string) error {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.Is(err, access.ErrUnavailable):
		return unavailable(resource, access.ErrUnavailable) // the reason is the administrator's
	case errors.Is(err, access.ErrChanged):
		return apierrors.NewResourceExpired(access.ErrChanged.Error() + "; start the list anew")
	case errors.As(err, &status), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, index.ErrNotFound):
		return apierrors.NewNotFound(resource, name)
	case errors.Is(err, index.ErrCompacted):
		return apierrors.NewResourceExpired("too old resource version: " + err.Error())
	case errors.Is(err, index.ErrFutureRevision):
		// Requests wait for a revision before they read at it, so this one comes from a
		// continue token: of an index that has been replaced by an older one.
		return apierrors.NewResourceExpired("the resourceVersion is not of this index: " + err.Error())
	case errors.Is(err, index.ErrClosed), errors.Is(err, index.ErrDamaged):
		return unavailable(resource, err)
	}
	return apierrors.NewInternalError(err)
}

// unavailable is 503 with Retry-After.
func unavailable(resource schema.GroupResource, err error) error {
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be served at the moment: %v", resource, err))
	status.ErrStatus.Details = &metav1.StatusDetails{
		Group:             resource.Group,
		Kind:              resource.Resource,
		RetryAfterSeconds: notReadyRetrySeconds,
	}
	return status
}

// parseRevision reads a resourceVersion; "" and "0" are 0.
func parseRevision(resourceVersion string) (uint64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %q: it must be one that this server has returned", resourceVersion))
	}
	return revision, nil
}

// ready returns 503 while the table cannot be served. If its rows are not kept up at
// the moment, or not all of them are there, it warns the client.
func (r *REST) ready(ctx context.Context) error {
	if err := r.backend.Readiness.Ready(r.Table); err != nil {
		return unavailable(v1alpha1.Resource(string(r.Table)), err)
	}
	if err := r.backend.Readiness.Stalled(); err != nil {
		warning.AddWarning(ctx, "", "what is shown may be out of date: "+err.Error())
	}
	for _, notice := range r.backend.Readiness.Notices(r.Table) {
		warning.AddWarning(ctx, "", notice)
	}
	return nil
}

// waitFor waits a little for a revision that has not been written yet.
func (r *REST) waitFor(ctx context.Context, revision uint64) error {
	if revision <= r.backend.Index.Revision() {
		return nil
	}
	waitCtx, cancel := context.WithTimeout(ctx, futureTimeout)
	defer cancel()
	if err := r.backend.Feed.WaitFor(waitCtx, revision); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return storage.NewTooLargeResourceVersionError(revision, r.backend.Index.Revision(), futureRetrySeconds)
	}
	return nil
}
