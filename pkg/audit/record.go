package audit

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// Buckets of the writer's private state in the index.
const (
	// bucketObjects has a record for each audited object, by objectStateKey.
	bucketObjects = "objects"
	// bucketSets has the constraints of each constraint set in use, by setStateKey.
	bucketSets = "sets"
	// bucketPlan has the plannedKind of each kind, by its kindStateKey.
	bucketPlan = "plan"
	// bucketListed has when each kind was listed to the end for the last time, as RFC 3339,
	// by its kindStateKey.
	bucketListed = "listed"
	// bucketNamespaces has the uid of each Namespace by its name.
	bucketNamespaces = "namespaces"
	// bucketMeta has single values.
	bucketMeta = "meta"
)

// Keys of bucketMeta.
const (
	metaLoaded  = "loaded"
	metaNextSet = "nextSet"
	metaSource  = "source"
)

// record is what the audit remembers of an object.
type record struct {
	UID types.UID `json:"u"`
	// ResourceVersion that the object was judged at. It may have had others since, in
	// which what was read looks the same.
	ResourceVersion string `json:"v"`
	// Read is a digest of what the set's constraints can read of the object, in the set's
	// view; empty if they read all of it.
	Read string `json:"r,omitempty"`
	// Set is the constraint set that the object was judged by.
	Set uint64 `json:"s"`
	// Namespace is a digest of what the set's constraints can read of the Namespace that
	// the object was judged with, in the set's view; empty if none of them needs it.
	Namespace string `json:"n,omitempty"`
	// Findings are the rows of the object.
	Findings []recordedFinding `json:"f,omitempty"`
}

// recordedFinding is what the audit remembers of a row.
type recordedFinding struct {
	Engine policy.Engine `json:"e"`
	Kind   string        `json:"k"`
	Name   string        `json:"n"`
	// Content is a digest of what the row says, without the times and versions that
	// are no news of their own.
	Content string `json:"c"`
	// FirstObserved in Unix seconds.
	FirstObserved int64 `json:"t"`
}

func (f *recordedFinding) id() policy.ConstraintID {
	return policy.ConstraintID{Engine: f.Engine, Kind: f.Kind, Name: f.Name}
}

func (f *recordedFinding) firstObserved() time.Time { return time.Unix(f.FirstObserved, 0) }

// decodeRecord returns the record of an object, nil if data is empty.
func decodeRecord(data []byte) (*record, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode object record: %w", err)
	}
	return &r, nil
}

// plannedKind is what the audit remembers of a kind over restarts.
type plannedKind struct {
	Group      string `json:"group"`
	Version    string `json:"version"`
	Kind       string `json:"kind"`
	Resource   string `json:"resource"`
	Namespaced bool   `json:"namespaced"`
	// Constraints that the kind was audited under.
	Constraints []policy.ConstraintID `json:"constraints"`
}

func (p plannedKind) source() source.Kind {
	return source.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: p.Group, Version: p.Version, Kind: p.Kind},
		Resource:         p.Resource,
		Namespaced:       p.Namespaced,
	}
}

// separator ends the parts of a state key. It sorts before every character of a
// name, so that the keys of a kind or of a namespace are contiguous.
const separator = "\x00"

func kindStateKey(gk schema.GroupKind) string { return gk.Group + separator + gk.Kind + separator }

func namespaceStateKey(gk schema.GroupKind, namespace string) string {
	return kindStateKey(gk) + namespace + separator
}

func objectStateKey(gk schema.GroupKind, namespace, name string) string {
	return namespaceStateKey(gk, namespace) + name
}

// splitObjectStateKey returns namespace and name of a key below a kindStateKey.
func splitObjectStateKey(gk schema.GroupKind, key string) (namespace, name string) {
	rest := key[len(kindStateKey(gk)):]
	for i := range len(rest) {
		if rest[i] == separator[0] {
			return rest[:i], rest[i+1:]
		}
	}
	return "", rest
}

func setStateKey(gk schema.GroupKind, id uint64) string {
	return fmt.Sprintf("%s%020d", kindStateKey(gk), id)
}
