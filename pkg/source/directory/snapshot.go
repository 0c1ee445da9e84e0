package directory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/version"

	"policy.example.io/policy-apiserver/pkg/source"
)

// object is a manifest as a cluster would have it.
type object struct {
	*manifest
	key  source.ObjectKey
	file string // empty if it is made up
}

func (o *object) namespacedName() types.NamespacedName {
	return types.NamespacedName{Namespace: o.key.Namespace, Name: o.key.Name}
}

// same is true if a stream does not have to tell the difference.
func (o *object) same(other *object) bool {
	return o.hash == other.hash && o.key == other.key
}

// objectMap holds the objects of one kind.
type objectMap map[types.NamespacedName]*object

// sorted returns the objects by namespace and name.
func (m objectMap) sorted() []*object {
	return slices.SortedFunc(maps.Values(m), func(a, b *object) int {
		return cmp.Or(strings.Compare(a.key.Namespace, b.key.Namespace), strings.Compare(a.key.Name, b.key.Name))
	})
}

// snapshot is the content of the folder at one moment. It is immutable.
type snapshot struct {
	inventory *source.Inventory
	objects   map[schema.GroupKind]objectMap
	// problems of the folder's content that are listed, and how many more there are.
	problems     []source.Problem
	moreProblems int
	// err says that the folder could not be read; everything else is then what it was
	// before.
	err error
}

// newSnapshot makes a snapshot from files in the order of their paths.
func newSnapshot(files []*file, problems []source.Problem) *snapshot {
	b := builder{
		snapshot: &snapshot{objects: map[schema.GroupKind]objectMap{}},
		problems: slices.Clone(problems),
		kinds:    map[schema.GroupKind]source.Kind{templateKind.GroupKind(): templateKind},
		excluded: map[schema.GroupKind]source.UnstreamedKind{},
		places:   map[*object]string{},
		uids:     map[types.UID]bool{},
	}
	for _, f := range files {
		for _, message := range f.problems {
			b.problems = append(b.problems, source.Problem{Subject: f.name, Message: message})
		}
	}
	b.addKinds(files)
	for _, f := range files {
		for i := range f.manifests {
			b.add(f, &f.manifests[i])
		}
	}
	b.addNamespaces()
	slices.SortStableFunc(b.problems, func(x, y source.Problem) int { return strings.Compare(x.Subject, y.Subject) })
	listed := min(len(b.problems), maxProblems)
	b.snapshot.problems, b.snapshot.moreProblems = slices.Clone(b.problems[:listed]), len(b.problems)-listed
	for i := range b.snapshot.problems {
		b.snapshot.problems[i].Message = shorten(b.snapshot.problems[i].Message)
	}
	b.snapshot.inventory = &source.Inventory{
		Kinds: slices.SortedFunc(maps.Values(b.kinds), func(x, y source.Kind) int {
			return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.Kind, y.Kind))
		}),
		Unstreamed: slices.SortedFunc(maps.Values(b.excluded), func(x, y source.UnstreamedKind) int {
			return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.Kind.Kind, y.Kind.Kind))
		}),
		Problems: limit(b.snapshot.problems, b.snapshot.moreProblems),
	}
	return b.snapshot
}

// builder makes a snapshot.
type builder struct {
	snapshot *snapshot
	problems []source.Problem
	kinds    map[schema.GroupKind]source.Kind
	excluded map[schema.GroupKind]source.UnstreamedKind
	places   map[*object]string // file and place of each object
	uids     map[types.UID]bool // that are taken
}

// addKinds finds out the version, resource and scope of all kinds.
func (b *builder) addKinds(files []*file) {
	versions := map[schema.GroupKind]string{}
	inNamespace := map[schema.GroupKind]bool{}
	definitions := map[schema.GroupKind]*definition{}
	for _, f := range files {
		for _, m := range f.manifests {
			gk := m.gvk.GroupKind()
			if reason := source.WhyExcluded(gk); reason != "" {
				b.excluded[gk] = source.UnstreamedKind{Kind: newKind(m.gvk, nil, m.namespace != ""), Reason: reason}
				continue
			}
			if v, ok := versions[gk]; !ok || version.CompareKubeAwareVersionStrings(m.gvk.Version, v) > 0 {
				versions[gk] = m.gvk.Version
			}
			inNamespace[gk] = inNamespace[gk] || m.namespace != ""
			if m.defines != nil && definitions[m.defines.gk] == nil {
				definitions[m.defines.gk] = m.defines
			}
		}
	}
	for gk, v := range versions {
		b.kinds[gk] = newKind(gk.WithVersion(v), definitions[gk], inNamespace[gk])
	}
}

// add adds the object of a manifest, unless there is one already.
func (b *builder) add(f *file, m *manifest) {
	gk := m.gvk.GroupKind()
	kind, ok := b.kinds[gk]
	if !ok {
		return // excluded
	}
	key := types.NamespacedName{Name: m.name}
	if kind.Namespaced {
		key.Namespace = cmp.Or(m.namespace, metav1.NamespaceDefault)
	}
	if used, ok := b.snapshot.objects[gk][key]; ok {
		b.problems = append(b.problems, source.Problem{
			Subject: f.name,
			Message: fmt.Sprintf("%s: %s %s is defined in %s already, which is used; remove one of the two",
				m.place, m.gvk.Kind, strings.TrimPrefix(key.String(), "/"), b.places[used]),
		})
		return
	}
	b.put(key, m, f.name+", "+m.place).file = f.name
}

// put adds an object.
func (b *builder) put(key types.NamespacedName, m *manifest, place string) *object {
	gk := m.gvk.GroupKind()
	uid := m.uid
	if uid == "" || b.uids[uid] { // a copy of an object's manifest has its uid
		uid = newUID(gk, key)
	}
	b.uids[uid] = true
	o := &object{manifest: m, key: source.ObjectKey{Namespace: key.Namespace, Name: key.Name, UID: uid}}
	b.places[o] = place
	if b.snapshot.objects[gk] == nil {
		b.snapshot.objects[gk] = objectMap{}
	}
	b.snapshot.objects[gk][key] = o
	return o
}

// addNamespaces makes up the Namespaces that objects are in and no manifest
// describes.
func (b *builder) addNamespaces() {
	missing := map[string]bool{}
	for _, objects := range b.snapshot.objects {
		for key := range objects {
			if _, ok := b.snapshot.objects[namespaceKind][types.NamespacedName{Name: key.Namespace}]; !ok && key.Namespace != "" {
				missing[key.Namespace] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		b.put(types.NamespacedName{Name: name}, newNamespace(name), "")
	}
	if _, ok := b.kinds[namespaceKind]; !ok && len(missing) > 0 {
		b.kinds[namespaceKind] = newKind(namespaceKind.WithVersion("v1"), nil, false)
	}
}

// newNamespace makes the manifest of a Namespace that has nothing but a name.
func newNamespace(name string) *manifest {
	quoted, _ := json.Marshal(name) // a string can always be written
	data := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%s}}`, quoted)
	return &manifest{gvk: namespaceKind.WithVersion("v1"), name: name, json: data, hash: hash(data)}
}

// uidSpace keeps the derived uids apart from those that others derive from names.
var uidSpace = uuid.MustParse("8f0e4a52-6c1d-4b0f-9a53-6d1f0e7c2b94")

// newUID derives the uid of an object that has none.
func newUID(gk schema.GroupKind, key types.NamespacedName) types.UID {
	identity := strings.Join([]string{gk.Group, gk.Kind, key.Namespace, key.Name}, "/")
	return types.UID(uuid.NewSHA1(uidSpace, []byte(identity)).String())
}

// nameLabel is what every Namespace of a cluster has its name in.
const nameLabel = "kubernetes.io/metadata.name"

// render returns the object as it is handed over.
func (o *object) render() (*unstructured.Unstructured, error) {
	var content map[string]any
	if err := utiljson.Unmarshal(o.json, &content); err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", o.gvk.Kind, o.key.Namespace, o.key.Name, err)
	}
	obj := &unstructured.Unstructured{Object: content}
	obj.SetNamespace(o.key.Namespace) // removes it if empty
	obj.SetUID(o.key.UID)
	obj.SetResourceVersion(o.hash)
	if obj.GetGeneration() == 0 {
		obj.SetGeneration(1)
	}
	if o.gvk.GroupKind() == namespaceKind {
		labels := obj.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[nameLabel] = o.key.Name
		obj.SetLabels(labels)
	}
	return obj, nil
}
