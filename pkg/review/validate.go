package review

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/policy"
)

// MaxObjects is how many objects a review has at most. How large they are together is
// bounded by the size of a request, which is 3 MiB.
const MaxObjects = 100

// maxConstraints is how many constraints a review selects at most.
const maxConstraints = 100

// Validate returns what is wrong with a spec as far as it takes no knowledge of kinds
// and policies.
func Validate(spec *v1alpha1.ReviewSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateOperation(path, spec)
	errs = append(errs, validateCandidates(path, spec)...)
	errs = append(errs, validateScope(path.Child("scope"), spec.Scope)...)
	if n := len(spec.Objects); n > MaxObjects {
		errs = append(errs, field.TooMany(path.Child("objects"), n, MaxObjects))
	}
	if n := len(spec.NamespaceObjects); n > MaxObjects {
		errs = append(errs, field.TooMany(path.Child("namespaceObjects"), n, MaxObjects))
	}
	if n := len(spec.Constraints); n > maxConstraints {
		errs = append(errs, field.TooMany(path.Child("constraints"), n, maxConstraints))
	}
	if r := spec.Resource; r != nil {
		errs = append(errs, required(path.Child("resource", "apiVersion"), r.APIVersion)...)
		errs = append(errs, required(path.Child("resource", "kind"), r.Kind)...)
		errs = append(errs, required(path.Child("resource", "name"), r.Name)...)
	}
	if spec.UserInfo != nil {
		errs = append(errs, required(path.Child("userInfo", "username"), spec.UserInfo.Username)...)
	}
	if spec.EnforcementPoint != "" {
		errs = append(errs, oneOf(path.Child("enforcementPoint"), spec.EnforcementPoint, policy.Points()...)...)
	}
	for i, c := range spec.Constraints {
		errs = append(errs, required(path.Child("constraints").Index(i).Child("kind"), c.Kind)...)
		if c.Engine != "" {
			engine := path.Child("constraints").Index(i).Child("engine")
			errs = append(errs, oneOf(engine, policy.Engine(c.Engine), policy.EngineGatekeeper, policy.EngineValidatingAdmissionPolicy)...)
		}
	}
	return errs
}

// validateOperation checks that there is what the operation takes, and no more.
func validateOperation(path *field.Path, spec *v1alpha1.ReviewSpec) field.ErrorList {
	operation := operationOf(spec)
	errs := oneOf(path.Child("operation"), operation, v1alpha1.ReviewCreate, v1alpha1.ReviewUpdate, v1alpha1.ReviewDelete)
	if len(errs) > 0 {
		return errs
	}
	object, old := !empty(spec.Object), !empty(spec.OldObject)
	given := 0
	for _, is := range []bool{object, len(spec.Objects) > 0, spec.Resource != nil, spec.Scope != nil, operation == v1alpha1.ReviewDelete && old} {
		if is {
			given++
		}
	}
	if given != 1 {
		what := "exactly one of object, objects, resource and scope"
		if operation == v1alpha1.ReviewDelete {
			what = "exactly one of oldObject and resource"
		}
		return field.ErrorList{field.Invalid(path, given, "a review needs "+what)}
	}
	forbid := func(is bool, name, why string) {
		if is {
			errs = append(errs, field.Forbidden(path.Child(name), why))
		}
	}
	if spec.Scope != nil {
		const why = "objects that exist are judged as the audit does, which is not as part of a request; leave it out"
		forbid(spec.Operation != "", "operation", why)
		forbid(old, "oldObject", why)
		forbid(spec.UserInfo != nil, "userInfo", why)
		forbid(spec.Explain, "explain", "with a scope only what was found is listed; name an object to have it explained")
		return errs
	}
	switch operation {
	case v1alpha1.ReviewCreate:
		forbid(old, "oldObject", "a CREATE has no old object; set operation to UPDATE or DELETE")
	case v1alpha1.ReviewUpdate:
		forbid(len(spec.Objects) > 0, "objects", "an UPDATE is of one object, with its oldObject")
		forbid(old && spec.Resource != nil, "oldObject", "resource is the old object as well")
		if object && !old {
			errs = append(errs, field.Required(path.Child("oldObject"), "an UPDATE replaces an object"))
		}
	case v1alpha1.ReviewDelete:
		forbid(object, "object", "what a DELETE removes is its oldObject")
		forbid(len(spec.Objects) > 0, "objects", "what a DELETE removes is its oldObject")
	}
	return errs
}

func empty(raw *runtime.RawExtension) bool {
	return raw == nil || len(raw.Raw) == 0 && raw.Object == nil
}

func required(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}

func oneOf[T ~string](path *field.Path, value T, supported ...T) field.ErrorList {
	for _, s := range supported {
		if s == value {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}
