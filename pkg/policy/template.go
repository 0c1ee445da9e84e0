package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/rego"
)

const (
	// engineVersion is part of every digest: verdicts of an earlier version of the
	// engine are not kept when it changes what they would be.
	engineVersion = 2

	targetName  = "admission.k8s.gatekeeper.sh"
	engineRego  = "Rego"
	engineCEL   = "K8sNativeValidation"
	regoV1      = "v1"
	templateV1  = "templates.gatekeeper.sh/v1"
	templateAPI = "templates.gatekeeper.sh/"
)

// templateSpec is what is read of a ConstraintTemplate's spec, in all versions.
type templateSpec struct {
	CRD struct {
		Spec struct {
			Names struct {
				Kind       string   `json:"kind"`
				ShortNames []string `json:"shortNames"`
			} `json:"names"`
			Validation *struct {
				LegacySchema    *bool                            `json:"legacySchema"`
				OpenAPIV3Schema *apiextensionsv1.JSONSchemaProps `json:"openAPIV3Schema"`
			} `json:"validation"`
		} `json:"spec"`
	} `json:"crd"`
	Targets []templateTarget `json:"targets"`
}

type templateTarget struct {
	Target string `json:"target"`
	// Operations of requests that the template is for, all if it is empty.
	Operations []string       `json:"operations"`
	Rego       string         `json:"rego"`
	Libs       []string       `json:"libs"`
	Code       []templateCode `json:"code"`
}

type templateCode struct {
	Engine string         `json:"engine"`
	Source map[string]any `json:"source"`
}

// template is a compiled ConstraintTemplate. It is immutable.
type template struct {
	kind    string
	schema  *constraintSchema
	program program
	// operations of requests that it judges, all if it is empty.
	operations []string
	// digest of what the object says that matters.
	digest string
}

// readTemplate decodes a template and computes its digest, without compiling it.
func readTemplate(obj *unstructured.Unstructured) (*templateSpec, string, error) {
	content, ok := obj.Object["spec"].(map[string]any)
	if !ok {
		return nil, "", errors.New("spec is missing; it has to be an object with crd and targets")
	}
	var spec templateSpec
	data, err := json.Marshal(content)
	if err != nil {
		return nil, "", fmt.Errorf("spec: %w", err)
	}
	// encoding/json, because the schema has types that only unmarshal themselves.
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, "", fmt.Errorf("spec: %w", err)
	}
	parts := [][]byte{[]byte(obj.GetAPIVersion() + "\x00" + obj.GetName() + "\x00"), data}
	if annotation, ok := obj.GetAnnotations()[syncAnnotation]; ok {
		parts = append(parts, []byte("\x00"+annotation))
	}
	return &spec, digest(parts...), nil
}

// withHosts returns the digest of a template that may reach hosts.
func withHosts(template string, allowNet []string) string {
	return digest([]byte(template), []byte(strings.Join(slices.Sorted(slices.Values(allowNet)), " ")))
}

func digest(parts ...[]byte) string { return hex.EncodeToString(sum(parts...)[:16]) }

func sum(parts ...[]byte) []byte {
	h := sha256.New()
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}

// compileTemplate compiles a template, whose program may reach hosts.
func compileTemplate(obj *unstructured.Unstructured, spec *templateSpec, allowNet []string, digest string) (*template, error) {
	kind := spec.CRD.Spec.Names.Kind
	if kind == "" {
		return nil, errors.New("spec.crd.spec.names.kind is missing; it names the kind of the template's constraints")
	}
	if want := strings.ToLower(kind); obj.GetName() != want {
		return nil, fmt.Errorf("metadata.name is %q; it must be spec.crd.spec.names.kind in lower case: %q", obj.GetName(), want)
	}
	schema, err := newConstraintSchema(constraintCRD(obj.GetAPIVersion(), spec))
	if err != nil {
		return nil, err
	}
	required, err := requiredKinds(obj)
	if err != nil {
		return nil, err
	}
	program, err := compileProgram(spec, required, allowNet)
	if err != nil {
		return nil, err
	}
	// That there is one target is checked with its program.
	return &template{kind: kind, schema: schema, program: program, operations: spec.Targets[0].Operations, digest: digest}, nil
}

// handles tells whether the template judges requests of an operation.
func (t *template) handles(operation string) bool {
	return len(t.operations) == 0 || slices.Contains(t.operations, "*") || slices.Contains(t.operations, operation)
}

// compileProgram picks the program of a template and compiles it. CEL wins over Rego,
// and a legacy rego field over code of engine Rego: that one is v0, as is any version
// but v1. Other engines do not matter if there is one that is known. required are the
// kinds of data.inventory that the template names.
func compileProgram(spec *templateSpec, required []schema.GroupVersionKind, allowNet []string) (program, error) {
	if n := len(spec.Targets); n != 1 {
		return nil, fmt.Errorf("spec.targets has %d entries; it must have exactly one, for %s", n, targetName)
	}
	target := &spec.Targets[0]
	if target.Target != targetName {
		return nil, fmt.Errorf("spec.targets[0].target is %q; it must be %s", target.Target, targetName)
	}
	codes := map[string]int{}
	for i, code := range target.Code {
		if other, ok := codes[code.Engine]; ok && (code.Engine == engineRego || code.Engine == engineCEL) {
			return nil, fmt.Errorf("spec.targets[0].code[%d]: code[%d] is of engine %s already", i, other, code.Engine)
		}
		codes[code.Engine] = i
	}
	if i, ok := codes[engineCEL]; ok {
		return newCELProgram(fmt.Sprintf("spec.targets[0].code[%d].source", i), target.Code[i].Source)
	}
	var source *rego.Source
	if i, ok := codes[engineRego]; ok {
		var err error
		if source, err = regoSource(target.Code[i].Source); err != nil {
			return nil, fmt.Errorf("spec.targets[0].code[%d].source: %w", i, err)
		}
	}
	if target.Rego != "" {
		source = &rego.Source{Rego: target.Rego, Libs: target.Libs}
	}
	if source == nil {
		return nil, fmt.Errorf("spec.targets[0] has no program; give it rego, or code with an entry of engine %s or %s", engineRego, engineCEL)
	}
	source.AllowNet = allowNet
	return newRegoProgram(*source, required)
}

func regoSource(content map[string]any) (*rego.Source, error) {
	var source struct {
		Rego    string   `json:"rego"`
		Libs    []string `json:"libs"`
		Version string   `json:"version"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &source); err != nil {
		return nil, err
	}
	return &rego.Source{Rego: source.Rego, Libs: source.Libs, V1: source.Version == regoV1}, nil
}

// ConstraintKind returns the kind of a template's constraints, also if the
// template cannot be compiled.
func ConstraintKind(obj *unstructured.Unstructured) (string, error) {
	kind, _, err := unstructured.NestedString(obj.Object, "spec", "crd", "spec", "names", "kind")
	if err != nil {
		return "", err
	}
	if kind == "" {
		return "", fmt.Errorf("template %s: spec.crd.spec.names.kind is missing", obj.GetName())
	}
	return kind, nil
}
