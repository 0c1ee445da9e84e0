package policy

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
	"policy.example.io/policy-apiserver/pkg/policy/rego"
)

// Which objects the policies of a Set read in data.inventory is found out in three
// ways: SyncSets and the Config name kinds, the annotation of a template does, and the
// program itself, where it has the kind in its text. In Gatekeeper only the first
// loads anything. Of the objects, what the programs read is kept.

// InventoryView says what the policies of a Set read of the objects of a kind in
// data.inventory.
type InventoryView struct {
	Kind Kind
	// Digest identifies the view: the items of equal views of an object are equal.
	Digest string

	reads      *paths.Tree
	projection *paths.Projection
	exclusions *exclusions
}

// InventoryItem is what is kept of an object in data.inventory. It is immutable.
type InventoryItem struct {
	// Digest of what is kept.
	Digest [16]byte

	item rego.Item
}

// Item returns what is kept of an object of the view's kind, nil if that is nothing:
// its namespace is excluded from syncing.
func (v *InventoryView) Item(obj *unstructured.Unstructured) (*InventoryItem, error) {
	if v.exclusions.excludes(processSync, obj) {
		return nil, nil
	}
	value, err := rego.NewValue(v.projection.Project(obj.Object, nil))
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s in data.inventory: %w", v.Kind.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	item := &InventoryItem{item: rego.Item{
		Namespace:    obj.GetNamespace(),
		GroupVersion: v.Kind.GroupVersion().String(),
		Kind:         v.Kind.Kind,
		Name:         obj.GetName(),
		Value:        value,
	}}
	key := &paths.Key{Bytes: fmt.Appendf(nil, "%q %q ", item.item.Namespace, item.item.Name)}
	key.Append(v.projection, obj.Object)
	// Texts that are only shown are shown from here: none takes the place of another.
	copy(item.Digest[:], sum(key.Bytes, fmt.Appendf(nil, "%q", key.Texts)))
	return item, nil
}

// InventoryObjects are the objects of a kind in data.inventory.
type InventoryObjects struct {
	View *InventoryView
	// Items in any order, one for each object.
	Items []*InventoryItem
	// Err is why the objects are not known, nil if they are.
	Err error
}

// digest of all items, whatever their order.
func (o *InventoryObjects) digest() string {
	var all [16]byte
	for _, item := range o.Items {
		for i := range all {
			all[i] ^= item.Digest[i]
		}
	}
	return hex.EncodeToString(all[:])
}

// Inventory is what is known of the objects that policies read in data.inventory. It
// is immutable.
type Inventory struct {
	objects []InventoryObjects
	digests []string // of the objects
	failed  map[string]error
	// unlisted are kinds that have objects which are never loaded, with the reasons.
	unlisted map[Kind]string
	// document is made when the first program reads it.
	document func() *rego.Inventory
}

// NewInventory returns an Inventory of the objects of kinds. failed are API groups of
// which it is not known which kinds they have, with the reasons. Neither may be
// modified any more.
func NewInventory(objects []InventoryObjects, failed map[string]error) *Inventory {
	inventory := &Inventory{objects: objects, digests: make([]string, len(objects)), failed: failed}
	for i := range objects {
		inventory.digests[i] = objects[i].digest()
	}
	inventory.document = sync.OnceValue(func() *rego.Inventory {
		var items []rego.Item
		for i := range objects {
			for _, item := range objects[i].Items {
				items = append(items, item.item)
			}
		}
		return rego.NewInventory(items)
	})
	return inventory
}

// Without returns the inventory with what is known of kinds that have objects which are
// never loaded: why that is so. kinds may not be modified any more.
func (i *Inventory) Without(kinds map[Kind]string) *Inventory {
	out := *i
	out.unlisted = kinds
	return &out
}

// whyUnlisted says why objects of a kind that is selected are never loaded, "" if there is
// no such kind.
func (i *Inventory) whyUnlisted(selects func(kind Kind) bool) string {
	var reasons []string
	for kind, reason := range i.unlisted {
		if selects(kind) {
			reasons = append(reasons, fmt.Sprintf("%s %s objects are not known: %s", kind.GroupVersion(), kind.Kind, reason))
		}
	}
	slices.Sort(reasons)
	return strings.Join(reasons, "; ")
}

// InventoryViews returns what the policies of the Set read in data.inventory. preferred
// are kinds in their preferred versions, others the further versions that these are
// served in: those are only read where the version is named.
func (s *Set) InventoryViews(preferred, others []Kind) []*InventoryView {
	return s.inventoryViews(s.inventoryPrograms(), preferred, others)
}

func (s *Set) inventoryViews(programs []*regoProgram, preferred, others []Kind) []*InventoryView {
	var views []*InventoryView
	add := func(kind Kind, isPreferred bool) {
		// A kind that is loaded for one program is there for all of them.
		reads, wanted := &paths.Tree{}, false
		for _, p := range programs {
			for i := range p.inventory.patterns {
				pattern := &p.inventory.patterns[i]
				if !pattern.selects(kind) {
					continue
				}
				reads.Add(pattern.reads)
				named := pattern.kind != "" && (isPreferred || pattern.groupVersion != "")
				wanted = wanted || named || s.syncs(p, kind.GroupVersionKind)
			}
		}
		if !wanted {
			return
		}
		identity := fmt.Appendf(nil, "%v %s %q %q", kind.GroupVersionKind, kind.Resource, reads.Paths(), s.exclusions.patterns(processSync))
		views = append(views, &InventoryView{Kind: kind, Digest: digest(identity), reads: reads, projection: paths.NewProjection(reads), exclusions: s.exclusions})
	}
	for _, kind := range preferred {
		add(kind, true)
	}
	for _, kind := range others {
		add(kind, false)
	}
	return views
}

// inventoryPrograms returns the programs of the Set that read data.inventory.
func (s *Set) inventoryPrograms() []*regoProgram {
	var out []*regoProgram
	// Reviews and the webhook read it for constraints that are not audited.
	for _, c := range slices.Concat(s.constraints, s.elsewhere) {
		rule, ok := c.rule.(*gatekeeperRule)
		if !ok {
			continue
		}
		if p, ok := rule.template.program.(*regoProgram); ok && p.inventory != nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// syncs tells whether a kind is loaded for a program that does not name it.
func (s *Set) syncs(p *regoProgram, gvk schema.GroupVersionKind) bool {
	return slices.Contains(s.synced, gvk) || slices.Contains(p.inventory.required, gvk)
}

// inventoryReads is what a program reads in data.inventory.
type inventoryReads struct {
	patterns []inventoryPattern
	// required are the kinds that the template's annotation names.
	required []schema.GroupVersionKind
}

// inventoryPattern is a part of data.inventory.
type inventoryPattern struct {
	namespaced bool
	// groupVersion and kind are empty for any.
	groupVersion, kind string
	// reads is what is read of each object.
	reads *paths.Tree
}

func (p *inventoryPattern) selects(kind Kind) bool {
	return p.namespaced == kind.Namespaced &&
		(p.groupVersion == "" || p.groupVersion == kind.GroupVersion().String()) &&
		(p.kind == "" || p.kind == kind.Kind)
}

// newInventoryReads takes what is read of data.inventory apart.
func newInventoryReads(tree *paths.Tree, required []schema.GroupVersionKind) *inventoryReads {
	reads := &inventoryReads{required: required}
	add := func(namespaced bool, tree *paths.Tree) {
		for groupVersion, kinds := range branches(tree) {
			for kind, names := range branches(kinds) {
				reads.patterns = append(reads.patterns, inventoryPattern{namespaced, groupVersion, kind, union(names)})
			}
		}
	}
	if tree.Reads("cluster") {
		add(false, tree.Below("cluster"))
	}
	if tree.Reads("namespace") {
		add(true, union(tree.Below("namespace")))
	}
	return reads
}

// branches returns the branches of a tree by name, that of all others by "". A tree of
// which nothing is read but that it is there has that one: any object makes it so.
func branches(tree *paths.Tree) map[string]*paths.Tree {
	named, others := tree.Branches()
	out := maps.Clone(named)
	if out == nil {
		out = map[string]*paths.Tree{}
	}
	if others == nil && len(named) == 0 {
		others = &paths.Tree{}
	}
	if others != nil {
		out[""] = others
	}
	return out
}

// union returns what is read below any field.
func union(tree *paths.Tree) *paths.Tree {
	out := &paths.Tree{}
	for _, branch := range branches(tree) {
		out.Add(branch)
	}
	return out
}

// programInventory is what there is of data.inventory for a program.
type programInventory struct {
	*Inventory
	digest string
	// missing says why there is not everything, "" if there is.
	missing string
}

// inventoryOf returns what there is for a program that reads data.inventory.
func (s *Set) inventoryOf(p *regoProgram, inventory *Inventory) *programInventory {
	out := &programInventory{Inventory: inventory}
	if inventory == nil {
		out.missing = "the objects of data.inventory are not loaded yet"
		out.digest = out.missing
		return out
	}
	var missing []string
	var parts [][]byte
	for i := range inventory.objects {
		objects := &inventory.objects[i]
		kind := objects.View.Kind
		if !slices.ContainsFunc(p.inventory.patterns, func(pattern inventoryPattern) bool { return pattern.selects(kind) }) {
			continue
		}
		if objects.Err != nil {
			missing = append(missing, fmt.Sprintf("%s %s objects are not known: %v", kind.GroupVersion(), kind.Kind, objects.Err))
		}
		parts = append(parts, []byte(objects.View.Digest+inventory.digests[i]))
	}
	for i := range p.inventory.patterns {
		if reason := s.unknown(p, &p.inventory.patterns[i], inventory); reason != "" {
			missing = append(missing, reason)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		out.missing = "the policy reads data.inventory, and " + strings.Join(slices.Compact(missing), "; ")
	}
	slices.SortFunc(parts, slices.Compare)
	out.digest = digest(append(parts, []byte(out.missing))...)
	return out
}

// unknown says why it is not known which kinds a part of data.inventory has, "" if it
// is known.
func (s *Set) unknown(p *regoProgram, pattern *inventoryPattern, inventory *Inventory) string {
	loaded := func(selects func(kind Kind) bool) bool {
		return slices.ContainsFunc(inventory.objects, func(o InventoryObjects) bool { return pattern.selects(o.View.Kind) && selects(o.View.Kind) })
	}
	failure := func(group string) string {
		if err := inventory.failed[group]; err != nil {
			return fmt.Sprintf("the kinds of the API group %q are not known: %v", group, err)
		}
		return ""
	}
	if pattern.kind != "" {
		if reason := inventory.whyUnlisted(pattern.selects); reason != "" {
			return reason
		}
		if loaded(func(Kind) bool { return true }) {
			return ""
		}
		if gv, err := schema.ParseGroupVersion(pattern.groupVersion); err == nil && pattern.groupVersion != "" {
			return failure(gv.Group)
		}
		// It may be in any group.
		if groups := slices.Sorted(maps.Keys(inventory.failed)); len(groups) > 0 {
			return failure(groups[0])
		}
		return ""
	}
	if len(s.synced) == 0 && len(p.inventory.required) == 0 {
		return "it does not say of which kinds; name them in the template's annotation " + syncAnnotation + ", or in a SyncSet"
	}
	for _, gvk := range slices.Concat(s.synced, p.inventory.required) {
		if pattern.groupVersion != "" && pattern.groupVersion != gvk.GroupVersion().String() {
			continue
		}
		if reason := inventory.whyUnlisted(func(kind Kind) bool { return kind.GroupVersionKind == gvk && pattern.selects(kind) }); reason != "" {
			return reason
		}
		if reason := failure(gvk.Group); reason != "" && !loaded(func(kind Kind) bool { return kind.GroupVersionKind == gvk }) {
			return reason
		}
	}
	return ""
}

// syncAnnotation is where a template names the kinds that it reads in data.inventory.
const syncAnnotation = "metadata.gatekeeper.sh/requires-sync-data"

// requiredKinds reads the annotation of a template. As in Gatekeeper it is JSON, which
// may be in quotes: a list of requirements, each of them a list of alternatives, each
// for all combinations of its groups, versions and kinds. Here all of them that exist
// are loaded.
func requiredKinds(template *unstructured.Unstructured) ([]schema.GroupVersionKind, error) {
	text, ok := template.GetAnnotations()[syncAnnotation]
	if !ok {
		return nil, nil
	}
	var requirements [][]struct {
		Groups   []string `json:"groups"`
		Versions []string `json:"versions"`
		Kinds    []string `json:"kinds"`
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf(`metadata.annotations[%s]: %w; it has to be a list of lists, such as [[{"groups": [""], "versions": ["v1"], "kinds": ["Service"]}]]`, syncAnnotation, fmt.Errorf(format, args...))
	}
	decoder := json.NewDecoder(strings.NewReader(strings.Trim(text, "\n\"")))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&requirements)
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mismatch):
		return nil, wrong("unexpected %s after %d bytes", mismatch.Value, mismatch.Offset)
	case err != nil:
		return nil, wrong("%w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, wrong("there is more behind the list, after %d bytes", decoder.InputOffset())
	}
	var out []schema.GroupVersionKind
	for i, alternatives := range requirements {
		for j, a := range alternatives {
			if len(a.Groups) == 0 || len(a.Versions) == 0 || len(a.Kinds) == 0 {
				return nil, wrong("[%d][%d] lacks groups, versions or kinds, so that it names nothing", i, j)
			}
			for _, group := range a.Groups {
				for _, version := range a.Versions {
					for _, kind := range a.Kinds {
						out = append(out, schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
					}
				}
			}
		}
	}
	return out, nil
}
