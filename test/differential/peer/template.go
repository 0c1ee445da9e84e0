package peer

import (
	"encoding/json"
	"fmt"

	templatesv1 "github.com/open-policy-agent/frameworks/constraint/pkg/apis/templates/v1"
	"github.com/open-policy-agent/frameworks/constraint/pkg/apis/templates/v1alpha1"
	"github.com/open-policy-agent/frameworks/constraint/pkg/apis/templates/v1beta1"
	"github.com/open-policy-agent/frameworks/constraint/pkg/core/templates"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// readTemplate decodes a template, applies the defaults of its version and
// converts it to the version that the client takes.
func readTemplate(obj *unstructured.Unstructured) (*templates.ConstraintTemplate, error) {
	var versioned interface {
		ToVersionless() (*templates.ConstraintTemplate, error)
	}
	switch obj.GetAPIVersion() {
	case templatesv1.SchemeGroupVersion.String():
		versioned = &templatesv1.ConstraintTemplate{}
	case v1beta1.SchemeGroupVersion.String():
		versioned = &v1beta1.ConstraintTemplate{}
	case v1alpha1.SchemeGroupVersion.String():
		versioned = &v1alpha1.ConstraintTemplate{}
	default:
		return nil, fmt.Errorf("template %s: apiVersion %q is unknown", obj.GetName(), obj.GetAPIVersion())
	}
	data, err := obj.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, versioned); err != nil {
		return nil, fmt.Errorf("template %s: %w", obj.GetName(), err)
	}
	return versioned.ToVersionless()
}
