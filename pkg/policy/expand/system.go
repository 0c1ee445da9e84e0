package expand

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxLevels is how many resultants may come from each other, one by one. Gatekeeper
	// gives up at one more.
	maxLevels = 29
	// maxResultants is how many resultants a template may lead to, its own and theirs.
	maxResultants = 256
)

// System is a set of templates that do not contradict each other. It is immutable.
type System struct {
	templates []*Template                             // sorted by name
	forKind   map[schema.GroupVersionKind][]*Template // sorted by name
	makes     map[*Template][]schema.GroupVersionKind // see Makes
	digest    string
}

// NewSystem returns the system of some templates, and the error of each that cannot be
// part of it: it is in a circle of templates, or leads to too many resultants.
func NewSystem(templates []*Template) (*System, map[*Template]error) {
	templates = slices.Clone(templates)
	slices.SortStableFunc(templates, func(a, b *Template) int { return cmp.Compare(a.Name, b.Name) })
	all := newGraph(templates)
	refused := map[*Template]error{}
	var open []*Template
	for _, t := range templates {
		if circle := all.circle(t); len(circle) > 0 {
			refused[t] = fmt.Errorf("it is in a circle: what it makes is expanded, in the end, to %s again, by %s; remove a kind from spec.applyTo of one of them, or delete one", kindText(t.Generates), strings.Join(circle, ", "))
			continue
		}
		open = append(open, t)
	}
	sizes := &sizes{graph: newGraph(open), of: map[*Template]size{}, refused: refused}
	s := &System{forKind: map[schema.GroupVersionKind][]*Template{}, makes: map[*Template][]schema.GroupVersionKind{}}
	for _, t := range open {
		if sizes.measure(t); refused[t] == nil {
			s.templates = append(s.templates, t)
		}
	}
	kept := newGraph(s.templates)
	s.forKind = kept.forKind
	h := sha256.New()
	for _, t := range s.templates {
		h.Write([]byte(t.Digest))
		s.makes[t] = kept.makes(t)
	}
	s.digest = hex.EncodeToString(h.Sum(nil)[:16])
	return s, refused
}

// Digest identifies the templates of the system.
func (s *System) Digest() string { return s.digest }

// Templates returns the templates of the system, sorted by name. The slice must not be
// modified.
func (s *System) Templates() []*Template { return s.templates }

// Makes returns the kinds of a template's resultants, and of all that other templates
// make of these. The slice must not be modified.
func (s *System) Makes(t *Template) []schema.GroupVersionKind { return s.makes[t] }

// graph has templates by the kinds that they apply to. A template is followed by those
// that apply to what it makes.
type graph struct {
	forKind map[schema.GroupVersionKind][]*Template
	reached map[*Template]map[*Template]struct{} // see reach
}

func newGraph(templates []*Template) *graph {
	g := &graph{forKind: map[schema.GroupVersionKind][]*Template{}, reached: map[*Template]map[*Template]struct{}{}}
	for _, t := range templates {
		for _, gvk := range t.appliesTo {
			g.forKind[gvk] = append(g.forKind[gvk], t)
		}
	}
	return g
}

func (g *graph) following(t *Template) []*Template { return g.forKind[t.Generates] }

// reach returns the templates that follow t, directly and one after the other.
func (g *graph) reach(t *Template) map[*Template]struct{} {
	if known, ok := g.reached[t]; ok {
		return known
	}
	found := map[*Template]struct{}{}
	for next := []*Template{t}; len(next) > 0; {
		last := len(next) - 1
		followers := g.following(next[last])
		next = next[:last]
		for _, follower := range followers {
			if _, ok := found[follower]; !ok {
				found[follower] = struct{}{}
				next = append(next, follower)
			}
		}
	}
	g.reached[t] = found
	return found
}

// circle returns the names of the templates that follow t and that t follows, sorted.
// A template does not follow itself directly.
func (g *graph) circle(t *Template) []string {
	var names []string
	for other := range g.reach(t) {
		if _, back := g.reach(other)[t]; back && other != t {
			names = append(names, other.Name)
		}
	}
	slices.Sort(names)
	return names
}

// makes returns the kinds of the resultants of t and of theirs, sorted.
func (g *graph) makes(t *Template) []schema.GroupVersionKind {
	kinds := []schema.GroupVersionKind{t.Generates}
	for follower := range g.reach(t) {
		kinds = append(kinds, follower.Generates)
	}
	slices.SortFunc(kinds, compareKinds)
	return slices.Compact(kinds)
}

// size is what a template leads to for one object.
type size struct{ levels, resultants int }

// sizes measures the templates of a graph without circles and refuses those that lead
// to too much.
type sizes struct {
	*graph
	of      map[*Template]size
	refused map[*Template]error
}

// measure returns the size of a template, which is nothing if it is refused.
func (s *sizes) measure(t *Template) size {
	if known, ok := s.of[t]; ok {
		return known
	}
	n := size{levels: 1, resultants: 1}
	for _, follower := range s.following(t) {
		m := s.measure(follower)
		n.levels = max(n.levels, 1+m.levels)
		n.resultants += m.resultants
	}
	switch {
	case n.levels > maxLevels:
		s.refused[t] = fmt.Errorf("a chain of more than %d ExpansionTemplates begins with it; Gatekeeper gives up there", maxLevels)
		n = size{}
	case n.resultants > maxResultants:
		s.refused[t] = fmt.Errorf("with the ExpansionTemplates that apply to what it makes, it leads to more than %d objects; remove some of those", maxResultants)
		n = size{}
	}
	s.of[t] = n
	return n
}

// MadeOf returns the kinds of what may be made of an object of exactly this kind.
func (s *System) MadeOf(gvk schema.GroupVersionKind) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	for _, t := range s.forKind[gvk] {
		kinds = append(kinds, s.makes[t]...)
	}
	return kinds
}
