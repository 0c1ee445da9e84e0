package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// Limits of one finding. What is beyond is cut and the finding marked truncated.
const (
	maxViolations   = 100
	maxMessageBytes = 8 << 10
	maxDetailsBytes = 32 << 10
	// maxFindingBytes bounds messages and details together.
	maxFindingBytes = 256 << 10
)

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// constraintReference of a constraint that was evaluated.
func constraintReference(c *policy.Constraint) v1alpha1.ConstraintReference {
	ref := referenceOf(c.ID)
	ref.UID, ref.Generation = c.UID, c.Generation
	return ref
}

// referenceOf the identity of a constraint. Names of rows depend on nothing else.
func referenceOf(id policy.ConstraintID) v1alpha1.ConstraintReference {
	return v1alpha1.ConstraintReference{Engine: v1alpha1.Engine(id.Engine), Kind: id.Kind, Name: id.Name}
}

// subjectOf the object that has a key in a kind, as far as row names depend on it.
func subjectOf(gk schema.GroupKind, namespace, name string) v1alpha1.ResourceReference {
	return v1alpha1.ResourceReference{APIGroup: gk.Group, Kind: gk.Kind, Namespace: namespace, Name: name}
}

// resourceReference of an object that was judged.
func resourceReference(gk schema.GroupKind, obj *unstructured.Unstructured) v1alpha1.ResourceReference {
	ref := subjectOf(gk, obj.GetNamespace(), obj.GetName())
	ref.APIVersion = obj.GetAPIVersion()
	ref.UID = obj.GetUID()
	ref.ResourceVersion = obj.GetResourceVersion()
	ref.Generation = obj.GetGeneration()
	return ref
}

// resultNamespace is the namespace in which the results of an object are found:
// its own, for a Namespace the one that it is, and none for other cluster-scoped
// objects.
func resultNamespace(gk schema.GroupKind, namespace, name string) string {
	if gk == namespaceKind {
		return name
	}
	return namespace
}

// newFinding turns a verdict that is not clean into a finding, without run and
// times.
func newFinding(gk schema.GroupKind, obj *unstructured.Unstructured, v *policy.Verdict) v1alpha1.Finding {
	f := v1alpha1.Finding{
		Constraint:        constraintReference(v.Constraint),
		Resource:          resourceReference(gk, obj),
		Owner:             topController(obj),
		LastWriter:        lastWriter(obj),
		EnforcementAction: v.EnforcementAction,
		Result:            resultOf(v.Outcome),
	}
	if v.EnforcementAction == v.Constraint.EnforcementAction {
		f.EnforcementActions = v.Constraint.EnforcementActions
	}
	f.Message, f.Truncated = truncate(v.Message, maxMessageBytes)
	size := 0
	for i := range v.Violations {
		message, cut := truncate(v.Violations[i].Message, maxMessageBytes)
		if size += len(message); i == maxViolations || size > maxFindingBytes {
			f.Truncated = true
			break
		}
		violation := v1alpha1.Violation{Message: message}
		if details := v.Violations[i].Details; len(details) > maxDetailsBytes || size+len(details) > maxFindingBytes {
			cut = true
		} else if len(details) > 0 {
			size += len(details)
			violation.Details = &runtime.RawExtension{Raw: details}
		}
		f.Truncated = f.Truncated || cut
		f.Violations = append(f.Violations, violation)
	}
	return f
}

// contentDigest tells whether a finding says something new. The version of the
// object and its last writer are left out: an object that is written without
// becoming better or worse is no news to those who watch.
func contentDigest(f v1alpha1.Finding) (string, error) {
	f.Resource.ResourceVersion = ""
	f.LastWriter = nil
	data, err := json.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("digest of finding: %w", err)
	}
	return shortDigest(data), nil
}

// newResult makes the API object of a finding.
func newResult(f v1alpha1.Finding, firstObserved, now time.Time, runID string) metav1.Object {
	f.FirstObserved = metav1.NewTime(firstObserved)
	f.LastChanged = metav1.NewTime(now)
	f.RunID = runID
	gk := schema.GroupKind{Group: f.Resource.APIGroup, Kind: f.Resource.Kind}
	objectMeta := metav1.ObjectMeta{
		Name:              v1alpha1.ResultName(f.Constraint, f.Resource),
		Namespace:         resultNamespace(gk, f.Resource.Namespace, f.Resource.Name),
		UID:               v1alpha1.ResultUID(f.Constraint, f.Resource),
		CreationTimestamp: f.FirstObserved,
		Labels:            v1alpha1.ResultLabels(f.Constraint, f.Resource.Kind),
	}
	typeMeta := metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "AuditResult"}
	if objectMeta.Namespace == "" {
		typeMeta.Kind = "ClusterAuditResult"
		return &v1alpha1.ClusterAuditResult{TypeMeta: typeMeta, ObjectMeta: objectMeta, Finding: f}
	}
	return &v1alpha1.AuditResult{TypeMeta: typeMeta, ObjectMeta: objectMeta, Finding: f}
}

func resultOf(o policy.Outcome) v1alpha1.Result {
	switch o {
	case policy.Fail:
		return v1alpha1.ResultFail
	case policy.Deferred:
		return v1alpha1.ResultDeferred
	default:
		return v1alpha1.ResultError
	}
}

// topController returns the controller of an object as far as the object tells:
// a Pod of a Deployment names its ReplicaSet, whose name is the Deployment's with
// the pod-template-hash behind it.
func topController(obj *unstructured.Unstructured) *v1alpha1.OwnerReference {
	ref := metav1.GetControllerOf(obj)
	if ref == nil {
		return nil
	}
	owner := &v1alpha1.OwnerReference{Kind: ref.Kind, Name: ref.Name}
	if hash := obj.GetLabels()["pod-template-hash"]; ref.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(ref.Name, "-"+hash); ok {
			owner.Kind, owner.Name = "Deployment", name
		}
	}
	return owner
}

// lastWriter returns the newest entry of the object's managedFields.
func lastWriter(obj *unstructured.Unstructured) *v1alpha1.LastWriter {
	var newest *metav1.ManagedFieldsEntry
	entries := obj.GetManagedFields()
	for i := range entries {
		if newest == nil || newest.Time.Before(entries[i].Time) {
			newest = &entries[i]
		}
	}
	if newest == nil {
		return nil
	}
	return &v1alpha1.LastWriter{Manager: newest.Manager, Operation: string(newest.Operation), Time: newest.Time}
}

// truncate cuts s to at most limit bytes, at a rune boundary, and tells whether
// it did.
func truncate(s string, limit int) (string, bool) {
	if len(s) <= limit {
		return s, false
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit], true
}

func shortDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:12])
}

// keyOf an object, for deletes.
func keyOf(obj *unstructured.Unstructured) source.ObjectKey {
	return source.ObjectKey{Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID()}
}
