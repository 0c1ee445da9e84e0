package policy

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// constraintSchema is the schema of a template's constraints.
type constraintSchema struct {
	props      *apiextensionsv1.JSONSchemaProps
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
}

// newConstraintSchema makes the schema of the constraints of a template. Schemas
// of version v1 must be structural; those of earlier versions need not be, unless
// legacySchema says so.
func newConstraintSchema(apiVersion string, spec *templateSpec) (*constraintSchema, error) {
	parameters := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	legacy := apiVersion != templateV1
	if v := spec.CRD.Spec.Validation; v != nil {
		if v.LegacySchema != nil {
			legacy = *v.LegacySchema
		}
		if v.OpenAPIV3Schema != nil {
			parameters = v.OpenAPIV3Schema.DeepCopy()
		}
	}
	if legacy {
		preserveUnknownFields(parameters)
	}
	s := &constraintSchema{props: constraintProps(*parameters)}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(s.props, internal, nil); err != nil {
		return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema: %w", err)
	}
	var err error
	if s.structural, err = structuralschema.NewStructural(internal); err != nil {
		return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema: %w", err)
	}
	if !legacy {
		if errs := structuralschema.ValidateStructural(nil, s.structural); len(errs) > 0 {
			return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema is not a structural schema: %w; mend it, or set legacySchema: true", inParameters(errs.ToAggregate()))
		}
	}
	if s.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema: %w", err)
	}
	return s, nil
}

// inParameters names places in the template's schema as its author knows them.
func inParameters(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "properties[spec].properties[parameters]", "openAPIV3Schema"))
}

// preserveUnknownFields makes a schema accept fields that it does not name.
func preserveUnknownFields(s *apiextensionsv1.JSONSchemaProps) {
	if s.Type == "" && len(s.Properties) > 0 {
		s.Type = "object"
	}
	if s.Type == "" || s.Type == "object" {
		s.XPreserveUnknownFields = ptr.To(true)
	}
	for name, property := range s.Properties {
		preserveUnknownFields(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		preserveUnknownFields(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		preserveUnknownFields(s.AdditionalProperties.Schema)
		s.XPreserveUnknownFields = nil // both at once are not structural
	}
}

// admit returns the content of a constraint with defaults applied, or what is
// wrong with it: unknown fields and values that the schema does not allow.
func (s *constraintSchema) admit(obj *unstructured.Unstructured) (map[string]any, error) {
	content := runtime.DeepCopyJSON(obj.Object)
	delete(content, "status")
	if spec, ok := content["spec"]; ok && spec == nil {
		delete(content, "spec")
	}
	if _, ok := content["spec"]; !ok {
		content["spec"] = map[string]any{}
	}
	pruned := runtime.DeepCopyJSON(content)
	unknown := pruning.PruneWithOptions(pruned, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("unknown fields: %s; the template's schema does not have them", strings.Join(unknown, ", "))
	}
	defaulting.Default(content, s.structural)
	if errs := validation.ValidateCustomResource(nil, content, s.validator); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return content, nil
}
