package policy

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

const (
	constraintGroup = "constraints.gatekeeper.sh"
	// wildcardPattern is what names of namespaces in a match block look like.
	wildcardPattern = `^\*?[-:a-z0-9]*\*?$`
)

// ConstraintCRD returns the CustomResourceDefinition of a template's constraints.
// It is the one that Gatekeeper makes, so that either may come first.
func ConstraintCRD(obj *unstructured.Unstructured) (*apiextensionsv1.CustomResourceDefinition, error) {
	spec, _, err := readTemplate(obj)
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", obj.GetName(), err)
	}
	kind := spec.CRD.Spec.Names.Kind
	if kind == "" || strings.ToLower(kind) != obj.GetName() {
		return nil, fmt.Errorf("template %s: spec.crd.spec.names.kind is %q; in lower case it must be the template's name", obj.GetName(), kind)
	}
	crd := constraintCRD(obj.GetAPIVersion(), spec)
	if _, err := newConstraintSchema(crd); err != nil {
		return nil, fmt.Errorf("template %s: %w", obj.GetName(), err)
	}
	return crd, nil
}

// constraintCRD makes the CRD of the constraints of a template, right or wrong.
func constraintCRD(apiVersion string, spec *templateSpec) *apiextensionsv1.CustomResourceDefinition {
	kind := spec.CRD.Spec.Names.Kind
	plural := strings.ToLower(kind)
	props := constraintProps(parameterProps(apiVersion, spec))
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   plural + "." + constraintGroup,
			Labels: map[string]string{"gatekeeper.sh/constraint": "yes"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: constraintGroup,
			Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural:     plural,
				Singular:   plural,
				Kind:       kind,
				ListKind:   kind + "List",
				ShortNames: spec.CRD.Spec.Names.ShortNames,
				Categories: []string{"constraint", "constraints"},
			},
		},
	}
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name:         version,
			Served:       true,
			Storage:      version == "v1beta1",
			Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props},
			Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
				{Name: "enforcement-action", Type: "string", JSONPath: ".spec.enforcementAction", Description: "Type of enforcement action"},
				{Name: "total-violations", Type: "integer", JSONPath: ".status.totalViolations", Description: "Total number of violations"},
			},
		})
	}
	return crd
}

// constraintProps is the schema of constraints. The schema of their parameters is nil
// if they have none.
func constraintProps(parameters *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	deny := &apiextensionsv1.JSON{Raw: []byte(`"deny"`)}
	spec := map[string]apiextensionsv1.JSONSchemaProps{
		"enforcementAction": {Type: "string", Default: deny},
		"match":             matchProps(),
		"scopedEnforcementActions": array(*object(map[string]apiextensionsv1.JSONSchemaProps{
			"action":            text,
			"enforcementPoints": array(*object(map[string]apiextensionsv1.JSONSchemaProps{"name": text})),
		})),
	}
	if parameters != nil {
		spec["parameters"] = *parameters
	}
	return object(map[string]apiextensionsv1.JSONSchemaProps{
		"apiVersion": text,
		"kind":       text,
		"metadata": *object(map[string]apiextensionsv1.JSONSchemaProps{
			"name": {Type: "string", MaxLength: ptr.To[int64](63)},
		}),
		"spec":   *object(spec),
		"status": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
	})
}

// matchProps is the schema of the match block.
func matchProps() apiextensionsv1.JSONSchemaProps {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	wildcard := apiextensionsv1.JSONSchemaProps{Type: "string", Pattern: wildcardPattern}
	selector := *object(map[string]apiextensionsv1.JSONSchemaProps{
		"matchLabels": {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &text}},
		"matchExpressions": array(*object(map[string]apiextensionsv1.JSONSchemaProps{
			"key": text, "operator": text, "values": array(text),
		}, "key", "operator")),
	})
	return *object(map[string]apiextensionsv1.JSONSchemaProps{
		"kinds": array(*object(map[string]apiextensionsv1.JSONSchemaProps{
			"apiGroups": array(text), "kinds": array(text),
		})),
		"scope":              text,
		"namespaces":         array(wildcard),
		"excludedNamespaces": array(wildcard),
		"labelSelector":      selector,
		"namespaceSelector":  selector,
		"name":               wildcard,
		"source":             {Type: "string", Enum: []apiextensionsv1.JSON{{Raw: []byte(`"All"`)}, {Raw: []byte(`"Generated"`)}, {Raw: []byte(`"Original"`)}}},
	})
}

func object(properties map[string]apiextensionsv1.JSONSchemaProps, required ...string) *apiextensionsv1.JSONSchemaProps {
	return &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties, Required: required}
}

func array(items apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
}
