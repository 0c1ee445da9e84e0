package audit

import (
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// constraintSet is what the objects of one kind are judged by at one time.
// Records refer to it by its id, which is never used for other constraints.
type constraintSet struct {
	id             uint64
	constraints    []*policy.Constraint
	digests        map[string]struct{}
	needsNamespace bool
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

// setRegistry knows, for each constraint set that records may refer to, the
// digests of the constraints whose verdicts the records still have.
type setRegistry struct {
	mu   sync.RWMutex // protects the fields below
	next uint64
	sets map[schema.GroupKind]map[uint64]map[string]struct{}
}

func newSetRegistry() *setRegistry {
	return &setRegistry{next: 1, sets: map[schema.GroupKind]map[uint64]map[string]struct{}{}}
}

// covered returns the digests of the constraints that objects with this set have
// been judged by. The answer must not be modified.
func (r *setRegistry) covered(gk schema.GroupKind, id uint64) map[string]struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sets[gk][id]
}

// allocate returns the set of exactly these constraints for a kind, and forgets
// of the kind's other sets all verdicts by constraints that are not among them:
// the rows of those constraints are dropped with the same plan.
func (r *setRegistry) allocate(gk schema.GroupKind, constraints []*policy.Constraint) *constraintSet {
	set := &constraintSet{constraints: constraints, digests: make(map[string]struct{}, len(constraints))}
	for _, c := range constraints {
		set.digests[c.Digest] = struct{}{}
		set.needsNamespace = set.needsNamespace || c.NeedsNamespace
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sets[gk] == nil {
		r.sets[gk] = map[uint64]map[string]struct{}{}
	}
	for id, digests := range r.sets[gk] {
		kept := make(map[string]struct{}, len(digests))
		for digest := range digests {
			if _, ok := set.digests[digest]; ok {
				kept[digest] = struct{}{}
			}
		}
		r.sets[gk][id] = kept
		if len(kept) == len(set.digests) && id > set.id {
			set.id = id
		}
	}
	if set.id == 0 {
		set.id = r.next
		r.next++
		r.sets[gk][set.id] = set.digests
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
	for id, digests := range r.sets[gk] {
		entry := storedSet{Group: gk.Group, Kind: gk.Kind, ID: id}
		for digest := range digests {
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
	Group   string   `json:"group"`
	Kind    string   `json:"kind"`
	ID      uint64   `json:"id"`
	Digests []string `json:"digests"`
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
			r.sets[gk] = map[uint64]map[string]struct{}{}
		}
		digests := make(map[string]struct{}, len(entry.Digests))
		for _, digest := range entry.Digests {
			digests[digest] = struct{}{}
		}
		r.sets[gk][entry.ID] = digests
		return nil
	})
}
