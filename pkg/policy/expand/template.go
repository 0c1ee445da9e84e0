package expand

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxNameLength is Gatekeeper's.
	maxNameLength = 63
	// maxKinds is how many kinds a template may apply to.
	maxKinds = 1000
)

// Template is an ExpansionTemplate. It is immutable.
type Template struct {
	// Name of the ExpansionTemplate.
	Name string
	// EnforcementAction replaces that of constraints for what is found in resultants,
	// unless it is empty. It may be any text, as in Gatekeeper.
	EnforcementAction string
	// Generates is the kind of the resultants. Its version may be empty.
	Generates schema.GroupVersionKind
	// Digest identifies everything that resultants depend on besides the object.
	Digest string

	appliesTo []schema.GroupVersionKind // sorted, without duplicates
	source    []string                  // path of fields
}

// spec is what an ExpansionTemplate says, in the versions v1alpha1 and v1beta1.
type spec struct {
	ApplyTo           []applyTo    `json:"applyTo"`
	TemplateSource    string       `json:"templateSource"`
	GeneratedGVK      generatedGVK `json:"generatedGVK"`
	EnforcementAction string       `json:"enforcementAction"`
}

// applyTo names kinds: each group with each version and each kind.
type applyTo struct {
	Groups   []string `json:"groups"`
	Versions []string `json:"versions"`
	Kinds    []string `json:"kinds"`
}

type generatedGVK struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// Compile makes a Template of an ExpansionTemplate of any version. The error says
// which field is wrong and what it should be.
func Compile(obj *unstructured.Unstructured) (*Template, error) {
	name := obj.GetName()
	switch {
	case name == "":
		return nil, errors.New("metadata.name is missing")
	case len(name) > maxNameLength:
		return nil, fmt.Errorf("metadata.name has %d characters; Gatekeeper takes at most %d", len(name), maxNameLength)
	}
	content, ok := obj.Object["spec"].(map[string]any)
	if !ok {
		return nil, errors.New("spec is missing; it has to be an object with applyTo, templateSource and generatedGVK")
	}
	var s spec
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, &s, true)
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		return nil, fmt.Errorf("spec: %w; it has applyTo, templateSource, generatedGVK and enforcementAction", errors.Join(unknown.Errors()...))
	} else if err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	t := &Template{
		Name:              name,
		EnforcementAction: s.EnforcementAction,
		Generates:         schema.GroupVersionKind(s.GeneratedGVK),
	}
	if t.Generates.Kind == "" {
		return nil, errors.New("spec.generatedGVK.kind is missing; it is the kind of the objects that are made, such as Pod")
	}
	if err := checkNames([]string{t.Generates.Group, t.Generates.Version, t.Generates.Kind}); err != nil {
		return nil, fmt.Errorf("spec.generatedGVK %w", err)
	}
	if t.source, err = sourcePath(s.TemplateSource); err != nil {
		return nil, err
	}
	if t.appliesTo, err = kindsOf(s.ApplyTo); err != nil {
		return nil, err
	}
	if slices.Contains(t.appliesTo, t.Generates) {
		return nil, fmt.Errorf("spec.applyTo has %s, which is spec.generatedGVK; what is made may not be expanded by the same template", kindText(t.Generates))
	}
	// These are texts and lists of texts; they can be written as JSON.
	identity, err := json.Marshal([]any{t.Name, t.EnforcementAction, t.Generates, t.appliesTo, t.source})
	if err != nil {
		return nil, fmt.Errorf("digest: %w", err)
	}
	sum := sha256.Sum256(identity)
	t.Digest = hex.EncodeToString(sum[:16])
	return t, nil
}

// sourcePath splits a path of fields.
func sourcePath(text string) ([]string, error) {
	if text == "" {
		return nil, errors.New("spec.templateSource is missing; it is the field that has the objects that are made, such as spec.template")
	}
	path := strings.Split(text, ".")
	if slices.ContainsFunc(path, func(field string) bool { return field == "" || strings.ContainsAny(field, "[]*$ ") }) {
		return nil, fmt.Errorf("spec.templateSource is %q; it must be names of fields with dots in between, such as spec.template, and cannot reach into lists", text)
	}
	return path, nil
}

// kindsOf returns the kinds that the entries of applyTo name.
func kindsOf(entries []applyTo) ([]schema.GroupVersionKind, error) {
	if len(entries) == 0 {
		return nil, errors.New("spec.applyTo is missing; it names the kinds that are expanded, by groups, versions and kinds")
	}
	var kinds []schema.GroupVersionKind
	for i, e := range entries {
		for _, list := range []struct {
			field, hint string
			values      []string
		}{{"groups", `, "" for that of Pods`, e.Groups}, {"versions", "", e.Versions}, {"kinds", "", e.Kinds}} {
			if err := checkNames(list.values); err != nil {
				return nil, fmt.Errorf("spec.applyTo[%d].%s %w; name the %s%s", i, list.field, err, list.field, list.hint)
			}
		}
		// One factor after the other: the product may be too large for an int.
		if n := len(e.Groups) * len(e.Versions); n > maxKinds || n*len(e.Kinds) > maxKinds-len(kinds) {
			return nil, fmt.Errorf("spec.applyTo names more than %d kinds; make several ExpansionTemplates of it", maxKinds)
		}
		for _, group := range e.Groups {
			for _, version := range e.Versions {
				for _, kind := range e.Kinds {
					kinds = append(kinds, schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
				}
			}
		}
	}
	slices.SortFunc(kinds, compareKinds)
	return slices.Compact(kinds), nil
}

// checkNames says what is wrong with a list of groups, versions or kinds.
func checkNames(list []string) error {
	if len(list) == 0 {
		return errors.New("is empty, so that the entry applies to nothing")
	}
	for _, name := range list {
		if strings.Contains(name, "*") {
			return errors.New("has an asterisk, which stands for nothing here")
		}
		if strings.Contains(name, "/") {
			return fmt.Errorf("has %q; group, version and kind are fields of their own", name)
		}
	}
	return nil
}

func compareKinds(a, b schema.GroupVersionKind) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Version, b.Version))
}

// kindText is a kind as manifests have it.
func kindText(gvk schema.GroupVersionKind) string {
	return gvk.GroupVersion().String() + " " + gvk.Kind
}

// AppliesTo tells whether the template applies to some version of a kind.
func (t *Template) AppliesTo(gk schema.GroupKind) bool {
	return slices.ContainsFunc(t.appliesTo, func(gvk schema.GroupVersionKind) bool { return gvk.GroupKind() == gk })
}

// AppliesToGroup tells whether the template applies to some kind of an API group.
func (t *Template) AppliesToGroup(group string) bool {
	return slices.ContainsFunc(t.appliesTo, func(gvk schema.GroupVersionKind) bool { return gvk.Group == group })
}
