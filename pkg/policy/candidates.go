package policy

import (
	"context"
	"fmt"
	"slices"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// candidateMemoBytes bounds what is remembered of candidates, about.
const candidateMemoBytes = 8 << 20

// Inputs returns what the Set was made of. It must not be modified.
func (s *Set) Inputs() Inputs { return s.inputs }

// CompileCandidates makes a Set of policies that are tried, not installed. Programs that
// this Set has are taken from here; what theirs is remembered of is their own, so that
// they push nothing out of the memory of the installed ones.
func (s *Set) CompileCandidates(ctx context.Context, in Inputs) *Set {
	base := *s
	base.memo = newMemo(candidateMemoBytes)
	return Compile(ctx, in, &base)
}

// Recompile makes a Set of other inputs that shares with this one what does not change.
func (s *Set) Recompile(ctx context.Context, in Inputs) *Set { return Compile(ctx, in, s) }

// ReadsInventory tells whether a constraint reads data.inventory.
func (c *Constraint) ReadsInventory() bool {
	rule, ok := c.rule.(*gatekeeperRule)
	if !ok {
		return false
	}
	p, ok := rule.template.program.(*regoProgram)
	return ok && p.inventory != nil
}

// CandidateInventory returns what there is in data.inventory for the policies of a Set
// that was compiled without one: of what others have loaded, the kinds that they read. A
// kind that is not loaded, or of which less was kept than they read, is unknown to them,
// and so is one for which allowed returns why it may not be read. preferred and others
// are the kinds of the source, as for InventoryViews. nil means that nothing is read.
func (s *Set) CandidateInventory(loaded *Inventory, preferred, others []Kind, allowed func(Kind) error) *Inventory {
	programs := s.allInventoryPrograms()
	if len(programs) == 0 {
		return nil
	}
	if loaded == nil {
		loaded = &Inventory{}
	}
	wanted := s.inventoryViews(programs, preferred, others)
	var objects []InventoryObjects
	for i := range loaded.objects {
		have := loaded.objects[i]
		kind := have.View.Kind
		reads, selected := readsOf(programs, kind)
		if !selected {
			continue
		}
		if have.Err == nil {
			have.Err = allowed(kind)
		}
		if have.Err == nil && !covers(have.View.reads, reads) {
			have.Err = fmt.Errorf("the policies that are installed read less of them than this one")
		}
		if have.Err != nil {
			have.Items = nil
		}
		objects = append(objects, have)
	}
	for _, view := range wanted {
		if slices.ContainsFunc(objects, func(o InventoryObjects) bool { return o.View.Kind.GroupVersionKind == view.Kind.GroupVersionKind }) {
			continue
		}
		err := allowed(view.Kind)
		if err == nil {
			err = fmt.Errorf("no policy that is installed reads them, so they are not loaded")
		}
		objects = append(objects, InventoryObjects{View: view, Err: err})
	}
	return NewInventory(objects, loaded.failed)
}

// allInventoryPrograms returns the programs that read data.inventory, of constraints that
// are enforced anywhere.
func (s *Set) allInventoryPrograms() []*regoProgram {
	var out []*regoProgram
	for _, c := range slices.Concat(s.constraints, s.elsewhere) {
		if !c.ReadsInventory() {
			continue
		}
		if p, ok := c.rule.(*gatekeeperRule).template.program.(*regoProgram); ok && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// readsOf returns what programs read of the objects of a kind in data.inventory, and
// whether they do.
func readsOf(programs []*regoProgram, kind Kind) (reads *paths.Tree, selected bool) {
	reads = &paths.Tree{}
	for _, p := range programs {
		for i := range p.inventory.patterns {
			if pattern := &p.inventory.patterns[i]; pattern.selects(kind) {
				reads.Add(pattern.reads)
				selected = true
			}
		}
	}
	return reads, selected
}

// covers tells whether a tree reads all that another one does.
func covers(tree, other *paths.Tree) bool {
	union := &paths.Tree{}
	union.Add(tree)
	alone := union.Paths()
	union.Add(other)
	return slices.Equal(alone, union.Paths())
}
