package directory

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// manifest is an object as its file describes it.
type manifest struct {
	gvk             schema.GroupVersionKind
	namespace, name string
	uid             types.UID
	// json is the object, with sorted keys. It is kept rather than the object because
	// it takes a fraction of the memory.
	json []byte
	// hash of json, as a resource version.
	hash string
	// place within the file, the line on which its document begins, and how many
	// manifests are before it.
	place          string
	line, position int
	// defines is set for a CustomResourceDefinition.
	defines *definition
}

// definition is what a CustomResourceDefinition says of its kind.
type definition struct {
	gk         schema.GroupKind
	resource   string
	namespaced bool
}

// parsed is what a file contains.
type parsed struct {
	manifests []manifest
	// problems say what is wrong, each with its place within the file.
	problems []string
}

// kustomizationGroup is the API group of kustomize's own files.
const kustomizationGroup = "kustomize.config.k8s.io"

// isKustomization tells the files that kustomize reads, by name.
func isKustomization(name string) bool {
	switch path.Base(name) {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return true
	}
	return false
}

// parse reads the content of a file.
func parse(data []byte) parsed {
	var p parsed
	docs, err := documents(data)
	if err != nil {
		p.problems = append(p.problems, err.Error())
		return p
	}
	for _, doc := range docs {
		if doc.err != nil {
			p.addProblem(doc.place(), doc.err)
			continue
		}
		var value any
		if err := utiljson.Unmarshal(doc.json, &value); err != nil {
			p.addProblem(doc.place(), fmt.Errorf("is not valid: %w; correct it", err))
			continue
		}
		if value != nil {
			before := len(p.manifests)
			p.addValue(doc.place(), value, schema.GroupVersionKind{})
			for i := before; i < len(p.manifests); i++ {
				p.manifests[i].line, p.manifests[i].position = doc.line, i
			}
		}
	}
	return p
}

func (p *parsed) addProblem(place string, err error) {
	p.problems = append(p.problems, shorten(place+" "+err.Error()))
}

var errNoObject = errors.New("is not a Kubernetes object: it has neither apiVersion nor kind; move it out of the folder, or render it first if it is the input of a tool")

// addValue adds the object, or the items of the list, that a document consists of.
// items is the kind of the list's items if the list says it.
func (p *parsed) addValue(place string, value any, items schema.GroupVersionKind) {
	object, ok := value.(map[string]any)
	if !ok {
		p.addProblem(place, errNoObject)
		return
	}
	if _, ok := object["kind"]; !ok && items.Kind != "" {
		object["apiVersion"], object["kind"] = items.GroupVersion().String(), items.Kind
	}
	gvk, err := kindOf(object)
	if err != nil {
		p.addProblem(place, err)
		return
	}
	if gvk.Group == kustomizationGroup {
		return
	}
	list, isList, err := listItems(object, gvk)
	if err != nil {
		p.addProblem(place, err)
		return
	}
	if isList {
		itemKind := gvk.GroupVersion().WithKind(strings.TrimSuffix(gvk.Kind, "List"))
		for i, item := range list {
			p.addValue(fmt.Sprintf("%s, item %d", place, i+1), item, itemKind)
		}
		return
	}
	m, err := newManifest(object, gvk)
	if err != nil {
		p.addProblem(place, err)
		return
	}
	m.place = place
	p.manifests = append(p.manifests, m)
}

// kindOf reads apiVersion and kind.
func kindOf(object map[string]any) (schema.GroupVersionKind, error) {
	apiVersion, hasVersion := object["apiVersion"]
	kind, hasKind := object["kind"]
	if !hasVersion && !hasKind {
		return schema.GroupVersionKind{}, errNoObject
	}
	for _, field := range []struct {
		name  string
		value any
	}{{"apiVersion", apiVersion}, {"kind", kind}} {
		if s, ok := field.value.(string); !ok || s == "" {
			return schema.GroupVersionKind{}, fmt.Errorf("has no %s; add it, or move it out of the folder if it is not a Kubernetes object", field.name)
		}
	}
	gv, err := schema.ParseGroupVersion(apiVersion.(string))
	if err != nil || gv.Version == "" {
		return schema.GroupVersionKind{}, fmt.Errorf("has the apiVersion %.100q; it must be a version or group/version", apiVersion)
	}
	gvk := gv.WithKind(kind.(string))
	for _, field := range []struct{ name, value string }{{"apiVersion", gvk.Group}, {"apiVersion", gvk.Version}, {"kind", gvk.Kind}} {
		if err := checkASCII(field.value, maxNameLength); err != nil {
			return schema.GroupVersionKind{}, fmt.Errorf("has a wrong %s: it %w; correct it", field.name, err)
		}
	}
	return gvk, nil
}

const (
	// maxNameLength of names and kinds, in bytes, is that of DNS, which nearly all
	// kinds prescribe.
	maxNameLength = 253
	// maxNamespaceLength is that of a label in DNS.
	maxNamespaceLength = 63
)

// checkPrintable returns an error that says why a string can be no name in any
// cluster: everything else is left to the cluster, or to policies.
func checkPrintable(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("is longer than %d characters", limit)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("contains the invisible character %U", r)
		}
	}
	return nil
}

// checkASCII is checkPrintable for what is even more restricted: kinds, groups,
// versions and namespaces.
func checkASCII(s string, limit int) error {
	if err := checkPrintable(s, limit); err != nil {
		return err
	}
	for _, r := range s {
		if r > unicode.MaxASCII || r == '/' {
			return fmt.Errorf("contains the character %q", r)
		}
	}
	return nil
}

// checkName returns an error if a cluster takes no object of any kind by that name.
func checkName(s string) error {
	if err := checkPrintable(s, maxNameLength); err != nil {
		return err
	}
	if messages := content.IsPathSegmentName(s); len(messages) > 0 {
		return errors.New(strings.Join(messages, " and ")) // such as: may not contain '/'
	}
	return nil
}

// listItems returns the items if the object is a list, and an error if it can only be
// a list and has none. Like kubectl it goes by the items: a list may have a name.
func listItems(object map[string]any, gvk schema.GroupVersionKind) ([]any, bool, error) {
	metadata, _ := object["metadata"].(map[string]any)
	named := metadata["name"] != nil
	isList := strings.HasSuffix(gvk.Kind, "List")
	_, builtIn := builtInGroups[gvk.Group]
	value, hasItems := object["items"]
	items, ok := value.([]any)
	switch {
	case isList && (builtIn || !named):
		// No kind of Kubernetes that is called a list is anything else.
		if ok || hasItems && value == nil {
			return items, true, nil
		}
		if builtIn {
			return nil, false, fmt.Errorf("(%s) has no items that are a list; correct it", gvk.Kind)
		}
		return nil, false, nil
	case isList:
		return items, slices.ContainsFunc(items, func(item any) bool { return hasFields(item, "metadata") || hasFields(item, "kind") }), nil
	default:
		return items, slices.ContainsFunc(items, func(item any) bool { return hasFields(item, "apiVersion", "kind") }), nil
	}
}

// hasFields is true if a value is an object with all of the fields.
func hasFields(value any, fields ...string) bool {
	object, ok := value.(map[string]any)
	return ok && !slices.ContainsFunc(fields, func(field string) bool { return object[field] == nil })
}

// newManifest checks that a cluster could take the object's metadata.
func newManifest(object map[string]any, gvk schema.GroupVersionKind) (manifest, error) {
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return manifest{}, fmt.Errorf("(%s) has no metadata; add metadata.name", gvk.Kind)
	}
	// The most frequent mistakes, whose errors would not name the place: a name like
	// 1.10 or "on" is no string in YAML.
	for _, field := range []string{"name", "namespace"} {
		if value := metadata[field]; value != nil && !isString(value) {
			return manifest{}, fmt.Errorf("(%s) has a metadata.%s that is not a string: %v; put it in quotes", gvk.Kind, field, value)
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		values, _ := metadata[field].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if !isString(values[key]) {
				return manifest{}, fmt.Errorf("(%s) has a value that is not a string in metadata.%s, of %s; put it in quotes", gvk.Kind, field, key)
			}
		}
	}
	var meta metav1.ObjectMeta
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &meta); err != nil {
		return manifest{}, fmt.Errorf("(%s) has wrong metadata: %w; correct it", gvk.Kind, err)
	}
	if meta.Name == "" {
		return manifest{}, fmt.Errorf("(%s) has no metadata.name; add it", gvk.Kind)
	}
	for _, field := range []struct {
		name string
		err  error
	}{
		{"name", checkName(meta.Name)},
		{"namespace", checkASCII(meta.Namespace, maxNamespaceLength)},
		{"uid", checkPrintable(string(meta.UID), maxNameLength)},
	} {
		if field.err != nil {
			return manifest{}, fmt.Errorf("(%s) has a wrong metadata.%s: it %w; correct it", gvk.Kind, field.name, field.err)
		}
	}
	data, err := json.Marshal(object)
	if err != nil {
		return manifest{}, fmt.Errorf("(%s) cannot be written as JSON: %w; correct it", gvk.Kind, err)
	}
	return manifest{
		gvk:       gvk,
		namespace: meta.Namespace,
		name:      meta.Name,
		uid:       meta.UID,
		json:      data,
		hash:      hash(data),
		defines:   definitionOf(gvk, data),
	}, nil
}

func isString(value any) bool {
	_, ok := value.(string)
	return ok
}

// hash of data in the form of a resource version.
func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return strconv.FormatUint(binary.BigEndian.Uint64(sum[:8]), 10)
}

// definitionOf reads a CustomResourceDefinition; it returns nil for any other
// object and for a definition that lacks what is needed.
func definitionOf(gvk schema.GroupVersionKind, data []byte) *definition {
	if gvk.GroupKind() != (schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}) {
		return nil
	}
	var crd struct {
		Spec struct {
			Group string `json:"group"`
			Scope string `json:"scope"`
			Names struct {
				Kind   string `json:"kind"`
				Plural string `json:"plural"`
			} `json:"names"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &crd); err != nil || crd.Spec.Names.Kind == "" || crd.Spec.Names.Plural == "" || checkASCII(crd.Spec.Names.Plural, maxNameLength) != nil {
		return nil
	}
	return &definition{
		gk:         schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind},
		resource:   crd.Spec.Names.Plural,
		namespaced: crd.Spec.Scope == "Namespaced",
	}
}
