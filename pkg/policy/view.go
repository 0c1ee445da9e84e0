package policy

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// View is what constraints can read of objects of one kind, and of their Namespaces:
// objects that look the same in it get the same verdicts. It is immutable.
//
// What is not found out is read: the constraints of a template whose answers depend on
// the clock or on chance read everything.
type View struct {
	object, namespace *paths.Tree
	projections       [2]*paths.Projection // of object and of namespace
}

// NewView returns what constraints can read of objects of a kind.
func NewView(kind Kind, constraints []*Constraint) *View {
	v := &View{object: &paths.Tree{}, namespace: &paths.Tree{}}
	for _, c := range constraints {
		c.rule.reads(kind, v.object, v.namespace)
	}
	// What findings say of an object besides its identity: its top controller.
	metadata := v.object.Field("metadata")
	metadata.Field("ownerReferences").ReadAll()
	metadata.Field("labels").Field("pod-template-hash").ReadAll()
	v.project()
	return v
}

func (v *View) project() {
	v.projections = [2]*paths.Projection{paths.NewProjection(v.object), paths.NewProjection(v.namespace)}
}

// Union returns what is read of Namespaces in any of several views, and nothing of
// objects.
func Union(views []*View) *View {
	out := &View{object: &paths.Tree{}, namespace: &paths.Tree{}}
	for _, v := range views {
		out.namespace.Add(v.namespace)
	}
	out.project()
	return out
}

// Whole tells whether everything of an object is read, its resourceVersion too.
func (v *View) Whole() bool { return v.object.Whole() }

// MetadataOnly tells whether nothing of an object is read but its kind and metadata.
func (v *View) MetadataOnly() bool {
	named, others := v.object.Branches()
	for name := range named {
		if name != "metadata" && name != "kind" && name != "apiVersion" {
			return false
		}
	}
	return others == nil
}

// Object returns a digest of what is read of an object, and of the version of its kind.
func (v *View) Object(obj *unstructured.Unstructured) string {
	return digestOf(v.projections[0], obj, obj.GetAPIVersion())
}

// Namespace returns a digest of what is read of a Namespace.
func (v *View) Namespace(obj *unstructured.Unstructured) string {
	return digestOf(v.projections[1], obj, string(obj.GetUID()))
}

// keys are reused: their memory is as large as what is read of an object.
var keys = sync.Pool{New: func() any { return &paths.Key{} }}

func digestOf(p *paths.Projection, obj *unstructured.Unstructured, more string) string {
	key := keys.Get().(*paths.Key)
	defer keys.Put(key)
	key.Reset()
	key.Append(p, obj.Object)
	// Texts that are only shown are in messages.
	for _, text := range append(key.Texts, more) {
		key.Bytes = fmt.Appendf(key.Bytes, "%d ", len(text))
		key.Bytes = append(key.Bytes, text...)
	}
	sum := sha256.Sum256(key.Bytes)
	return base64.RawStdEncoding.EncodeToString(sum[:15])
}

// viewJSON is how a View is written.
type viewJSON struct {
	Object    *paths.Tree `json:"object"`
	Namespace *paths.Tree `json:"namespace"`
}

// Encode returns the view as JSON, from which DecodeView makes it again. Equal views have
// equal encodings.
func (v *View) Encode() []byte {
	data, _ := json.Marshal(viewJSON{v.object, v.namespace}) // of names and booleans
	return data
}

// DecodeView returns the view that Encode wrote.
func DecodeView(data []byte) (*View, error) {
	in := viewJSON{&paths.Tree{}, &paths.Tree{}}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("decode a view: %w", err)
	}
	v := &View{object: in.Object, namespace: in.Namespace}
	v.project()
	return v, nil
}

// readLabels says that the labels of an object, or of a Namespace, are read.
func readLabels(t *paths.Tree) { t.Field("metadata").Field("labels").ReadAll() }
