package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/utils/ptr"
)

// schemaPlace is where a template has the schema of its parameters.
const schemaPlace = "spec.crd.spec.validation.openAPIV3Schema"

// constraintSchema is the schema of a template's constraints.
type constraintSchema struct {
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator // of x-kubernetes-validations, nil if there are none
}

// newConstraintSchema makes the schema of the constraints of a template from their
// CRD, if a kube-apiserver would take that.
func newConstraintSchema(crd *apiextensionsv1.CustomResourceDefinition) (*constraintSchema, error) {
	crd = crd.DeepCopy()
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", schemaPlace, err)
	}
	if errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), internal); len(errs) > 0 {
		return nil, fmt.Errorf("a kube-apiserver would refuse the CRD of its constraints: %w; mend that or, if only types are missing, set legacySchema: true beside the schema", inTemplate(errs.ToAggregate()))
	}
	props := internal.Spec.Validation.OpenAPIV3Schema
	s := &constraintSchema{}
	var err error
	if s.structural, err = structuralschema.NewStructural(props); err != nil {
		return nil, fmt.Errorf("%s: %w", schemaPlace, err)
	}
	if s.validator, _, err = validation.NewSchemaValidator(props); err != nil {
		return nil, fmt.Errorf("%s: %w", schemaPlace, err)
	}
	s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s, nil
}

// inTemplate names places of a CRD as the template's author knows them.
func inTemplate(err error) error {
	return errors.New(strings.NewReplacer(
		"spec.validation.openAPIV3Schema.properties[spec].properties[parameters]", schemaPlace,
		"spec.names.", "spec.crd.spec.names.",
	).Replace(err.Error()))
}

// parameterProps returns the schema of a template's parameters, nil if there may be
// none. Unless legacySchema says otherwise, templates of version v1 have exactly the
// fields that they name, and those of earlier versions may have others.
func parameterProps(apiVersion string, spec *templateSpec) *apiextensionsv1.JSONSchemaProps {
	var parameters *apiextensionsv1.JSONSchemaProps
	legacy := apiVersion != templateV1
	if v := spec.CRD.Spec.Validation; v != nil {
		if v.LegacySchema != nil {
			legacy = *v.LegacySchema
		}
		parameters = v.OpenAPIV3Schema.DeepCopy()
	}
	if legacy {
		if parameters == nil {
			parameters = &apiextensionsv1.JSONSchemaProps{}
		}
		preserveUnknownFields(parameters)
	}
	return parameters
}

// preserveUnknownFields makes a schema accept fields that it does not name, and
// elements of arrays that it does not describe.
func preserveUnknownFields(s *apiextensionsv1.JSONSchemaProps) {
	switch {
	case s.Type == "" || s.Type == "object":
		s.XPreserveUnknownFields = ptr.To(true)
	case s.Type == "array" && s.Items == nil:
		s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{}}
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
	}
}

// admit returns the content of a constraint as a kube-apiserver stores it, without
// nulls and with defaults, or what is wrong with it: unknown fields and values that
// the schema does not allow.
func (s *constraintSchema) admit(ctx context.Context, obj *unstructured.Unstructured) (map[string]any, error) {
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
	defaulting.PruneNonNullableNullsWithoutDefaults(content, s.structural)
	defaulting.Default(content, s.structural)
	errs := validation.ValidateCustomResource(nil, content, s.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, content)...)
	if len(errs) == 0 && s.rules != nil {
		errs, _ = s.rules.Validate(ctx, nil, s.structural, content, nil, celconfig.RuntimeCELCostBudget)
	}
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return content, nil
}
