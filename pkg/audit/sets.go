package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// constraintSet is what the objects of one kind are judged by at one time.
// Records refer to it by its id, which is never used for other constraints, another
// version of the kind or another view.
type constraintSet struct {
	id             uint64
	constraints    []*policy.Constraint
	digests        map[string]struct{}
	needsNamespace bool
	// view is what the constraints can read of objects.
	view *policy.View
	// unknownKinds are kinds of constraints that cannot be listed at the moment.
	// Findings of their constraints stay as they are.
	unknownKinds map[string]struct{}
}

func (s *constraintSet) empty() bool { return s == nil || len(s.constraints) == 0 }

// contains tells whether s judges by everything that other judges by.
func (s *constraintSet) contains(other *constraintSet) bool {
	for digest := range other.digests {
		if _, ok := s.digests[digest]; !ok {
			return false
		}
	}
	return true
}

// setRegistry knows the constraint sets that records may refer to.
type setRegistry struct {
	mu   sync.RWMutex // protects the fields below
	next uint64
	sets map[schema.GroupKind]map[uint64]*knownSet
}

// knownSet is what is known of a constraint set. It is replaced and not modified.
type knownSet struct {
	// version of the kind in which objects were judged.
	version string
	// view that digests in records were made with.
	view *policy.View
	// encodedView is the view as it is written.
	encodedView []byte
	// digests of the constraints whose verdicts the records still have.
	digests map[string]struct{}
}

func newSetRegistry() *setRegistry {
	return &setRegistry{next: 1, sets: map[schema.GroupKind]map[uint64]*knownSet{}}
}

// known returns what is known of a set, nil if there is no such set.
func (r *setRegistry) known(gk schema.GroupKind, id uint64) *knownSet {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sets[gk][id]
}

// allocate returns the set of exactly these constraints for a kind, and forgets
// of the kind's other sets all verdicts by constraints that are not among them:
// the rows of those constraints are dropped with the same plan. Verdicts on objects in
// another version of the kind are forgotten altogether.
func (r *setRegistry) allocate(kind source.Kind, constraints []*policy.Constraint) *constraintSet {
	gk := kind.GroupKind()
	set := &constraintSet{
		constraints: constraints,
		digests:     make(map[string]struct{}, len(constraints)),
		view:        policy.NewView(policy.Kind(kind), constraints),
	}
	for _, c := range constraints {
		set.digests[c.Digest] = struct{}{}
		set.needsNamespace = set.needsNamespace || c.NeedsNamespace
	}
	view := set.view.Encode()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sets[gk] == nil {
		r.sets[gk] = map[uint64]*knownSet{}
	}
	for id, known := range r.sets[gk] {
		kept := *known
		kept.digests = make(map[string]struct{}, len(known.digests))
		for digest := range known.digests {
			if _, ok := set.digests[digest]; ok && known.version == kind.Version {
				kept.digests[digest] = struct{}{}
			}
		}
		r.sets[gk][id] = &kept
		if known.version == kind.Version && len(kept.digests) == len(set.digests) && bytes.Equal(known.encodedView, view) && id > set.id {
			set.id = id
		}
	}
	if set.id == 0 {
		set.id = r.next
		r.next++
		r.sets[gk][set.id] = &knownSet{version: kind.Version, view: set.view, encodedView: view, digests: set.digests}
	}
	return set
}

// retain forgets all sets of a kind but one.
func (r *setRegistry) retain(gk schema.GroupKind, id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other := range r.sets[gk] {
		if other != id {
			delete(r.sets[gk], other)
		}
	}
}

func (r *setRegistry) drop(gk schema.GroupKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sets, gk)
}

// save writes the sets of a kind.
func (r *setRegistry) save(state stateWriter, meta stateWriter, gk schema.GroupKind) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := clearPrefix(state, kindStateKey(gk)); err != nil {
		return err
	}
	for id, known := range r.sets[gk] {
		entry := storedSet{Group: gk.Group, Version: known.version, Kind: gk.Kind, ID: id, View: known.encodedView}
		for digest := range known.digests {
			entry.Digests = append(entry.Digests, digest)
		}
		data, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("encode constraint set: %w", err)
		}
		if err := state.Put(setStateKey(gk, id), data); err != nil {
			return err
		}
	}
	next, err := json.Marshal(r.next)
	if err != nil {
		return fmt.Errorf("encode next constraint set: %w", err)
	}
	return meta.Put(metaNextSet, next)
}

// storedSet is an entry of bucketSets.
type storedSet struct {
	Group   string          `json:"group"`
	Version string          `json:"version"`
	Kind    string          `json:"kind"`
	ID      uint64          `json:"id"`
	View    json.RawMessage `json:"view"`
	Digests []string        `json:"digests"`
}

// load reads what save wrote.
func (r *setRegistry) load(state, meta stateReader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if data := meta.Get(metaNextSet); data != nil {
		if err := json.Unmarshal(data, &r.next); err != nil {
			return fmt.Errorf("decode next constraint set: %w", err)
		}
	}
	return state.Ascend("", func(_ string, value []byte) error {
		var entry storedSet
		if err := json.Unmarshal(value, &entry); err != nil {
			return fmt.Errorf("decode constraint set: %w", err)
		}
		gk := schema.GroupKind{Group: entry.Group, Kind: entry.Kind}
		if r.sets[gk] == nil {
			r.sets[gk] = map[uint64]*knownSet{}
		}
		if len(entry.View) == 0 {
			return nil // of a version that did not write views: its objects are judged anew
		}
		view, err := policy.DecodeView(entry.View)
		if err != nil {
			return fmt.Errorf("decode constraint set: %w", err)
		}
		known := &knownSet{version: entry.Version, view: view, encodedView: entry.View, digests: make(map[string]struct{}, len(entry.Digests))}
		for _, digest := range entry.Digests {
			known.digests[digest] = struct{}{}
		}
		r.sets[gk][entry.ID] = known
		return nil
	})
}
