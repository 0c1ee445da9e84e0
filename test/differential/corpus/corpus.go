package corpus

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed policies/*.yaml referential/*.yaml
var files embed.FS

// Policies are ConstraintTemplates and their constraints.
type Policies struct {
	Templates   []*unstructured.Unstructured
	Constraints []*unstructured.Unstructured
}

// Default returns the 25 constraints that look at one object at a time, and their
// templates.
func Default() (*Policies, error) { return load("policies") }

// Referential returns the constraints that read data.inventory as well.
func Referential() (*Policies, error) { return load("referential") }

func load(directory string) (*Policies, error) {
	paths, err := fs.Glob(files, directory+"/*.yaml")
	if err != nil {
		return nil, err
	}
	policies := &Policies{}
	for _, path := range paths {
		data, err := files.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for text := range strings.SplitSeq(string(data), "\n---\n") {
			obj, err := parse([]byte(text))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if obj.GetKind() == "ConstraintTemplate" {
				policies.Templates = append(policies.Templates, obj)
			} else {
				policies.Constraints = append(policies.Constraints, obj)
			}
		}
	}
	return policies, nil
}

func parse(text []byte) (*unstructured.Unstructured, error) {
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	obj := &unstructured.Unstructured{}
	return obj, obj.UnmarshalJSON(data)
}

// Objects are objects in the order in which an audit meets them, and the
// Namespaces that they are in, by name.
type Objects struct {
	Items      []*unstructured.Unstructured
	Namespaces map[string]*unstructured.Unstructured
}

// Namespace returns the Namespace that an object is in, nil if it is in none.
func (o *Objects) Namespace(obj *unstructured.Unstructured) *unstructured.Unstructured {
	return o.Namespaces[obj.GetNamespace()]
}

// shares of the kinds of Varied and of what is no Pod in Cluster, of a hundred.
var shares = []struct {
	share int
	make  func(*generator) document
}{
	{50, (*generator).pod},
	{14, (*generator).deployment},
	{12, (*generator).service},
	{8, (*generator).configMap},
	{6, (*generator).ingress},
	{3, (*generator).role},
	{3, (*generator).roleBinding},
	{4, (*generator).clusterRole},
}

// Varied returns n objects, no two of which are alike.
func Varied(seed uint64, n int) (*Objects, error) {
	g := newGenerator(seed)
	documents := g.namespaceDocuments()
	for len(documents) < n {
		documents = append(documents, g.any())
	}
	return g.objects(documents[:n])
}

// any returns an object of a random kind.
func (g *generator) any() document {
	at := g.IntN(100)
	for _, s := range shares {
		if at -= s.share; at < 0 {
			return s.make(g)
		}
	}
	return g.configMap()
}

// objects makes objects of documents, with the types that decoding JSON gives.
func (g *generator) objects(documents []document) (*Objects, error) {
	out := &Objects{Namespaces: map[string]*unstructured.Unstructured{}}
	for _, d := range documents {
		data, err := json.Marshal(d)
		if err != nil {
			return nil, err
		}
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON(data); err != nil {
			return nil, err
		}
		out.Items = append(out.Items, obj)
		if obj.GetKind() == "Namespace" {
			out.Namespaces[obj.GetName()] = obj
		}
	}
	return out, nil
}
