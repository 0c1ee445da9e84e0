package reviewcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/review"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

// batchBytes is how large the objects of a review are together, about: less than a
// request may be, so that there is room for the rest of it.
const batchBytes = 2 << 20

// reviewer answers reviews.
type reviewer interface {
	review(ctx context.Context, spec *v1alpha1.ReviewSpec) (*v1alpha1.ReviewStatus, error)
	// problems are those of the policies.
	problems() []string
}

// item is a manifest and its text.
type item struct {
	directory.Manifest
	raw []byte
}

// review asks about the manifests, as many at a time as a review may have.
func (o *options) review(ctx context.Context, ask reviewer, manifests []directory.Manifest, c *candidates, r *report) error {
	namespaces := map[string][]byte{}
	var items []item
	for _, m := range manifests {
		raw, err := json.Marshal(m.Object.Object)
		if err != nil {
			return fmt.Errorf("%s: %w", m.File, err)
		}
		items = append(items, item{m, raw})
		if m.Object.GroupVersionKind().GroupKind().String() == "Namespace" {
			namespaces[m.Object.GetName()] = raw
		}
	}
	room := batchBytes
	for i := range c.raw {
		room -= len(c.raw[i].Raw)
	}
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && n < review.MaxObjects && (n == 0 || size+len(items[n].raw) <= room) {
			size += len(items[n].raw)
			n++
		}
		if err := o.reviewBatch(ctx, ask, items[:n], namespaces, c, r); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// reviewBatch asks about some manifests. What is wrong with one does not cost the
// others.
func (o *options) reviewBatch(ctx context.Context, ask reviewer, items []item, namespaces map[string][]byte, c *candidates, r *report) error {
	items = slices.Clone(items)
	for len(items) > 0 {
		spec := o.spec()
		spec.CandidatePolicies, spec.WithInstalled = c.raw, o.withInstalled
		used := map[string]bool{}
		for _, it := range items {
			spec.Objects = append(spec.Objects, runtime.RawExtension{Raw: it.raw})
			if name := it.Object.GetNamespace(); namespaces[name] != nil && !used[name] {
				used[name] = true
				spec.NamespaceObjects = append(spec.NamespaceObjects, runtime.RawExtension{Raw: namespaces[name]})
			}
		}
		status, err := ask.review(ctx, &spec)
		if err == nil {
			r.add(items, status)
			return nil
		}
		wrong := wrongObjects(err)
		if len(wrong) == 0 {
			return err
		}
		for i := len(items) - 1; i >= 0; i-- {
			for _, problem := range wrong[i] {
				it := items[i]
				r.Problems = append(r.Problems, fmt.Sprintf("%s:%d: %s %s: %s", it.File, it.Line, it.Object.GetKind(), it.Object.GetName(), problem))
			}
			if len(wrong[i]) > 0 {
				items = slices.Delete(items, i, i+1)
			}
		}
	}
	return nil
}

var objectField = regexp.MustCompile(`^spec\.objects\[(\d+)\]\.?(.*)$`)

// wrongObjects returns what an error says of the objects of a review, by their index;
// nothing if it says something else.
func wrongObjects(err error) map[int][]string {
	out := map[int][]string{}
	add := func(field, message string) bool {
		match := objectField.FindStringSubmatch(field)
		if match == nil {
			return false
		}
		i, err := strconv.Atoi(match[1])
		if err != nil {
			return false
		}
		if match[2] != "" {
			message = match[2] + ": " + message
		}
		out[i] = append(out[i], message)
		return true
	}
	var invalid *review.InvalidError
	if errors.As(err, &invalid) {
		for _, problem := range invalid.Errors {
			if !add(problem.Field, problem.ErrorBody()) {
				return nil
			}
		}
		return out
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonInvalid || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		if !add(cause.Field, cause.Message) {
			return nil
		}
	}
	return out
}
