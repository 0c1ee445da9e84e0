package cel

import (
	"slices"

	admissioncel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"policy.example.io/policy-apiserver/pkg/policy/paths"
)

// Source of a program, as its policy has it.
type Source struct {
	Validations      []Validation
	MatchConditions  []NamedExpression
	Variables        []NamedExpression
	AuditAnnotations []AuditAnnotation
	// FailurePolicyIgnore makes validations and match conditions that cannot be
	// evaluated pass.
	FailurePolicyIgnore bool
	// Native is true for a ValidatingAdmissionPolicy. Otherwise the source is the
	// K8sNativeValidation code of a ConstraintTemplate: variables.params and
	// variables.anyObject are there, params and authorizer are not.
	Native bool
	// HasParams declares params. It is read of native sources only.
	HasParams bool
}

// Validation is an expression that has to be true, and what to say if it is not.
type Validation struct {
	Expression        string
	Message           string
	MessageExpression string
}

// NamedExpression is a match condition or a variable.
type NamedExpression struct {
	Name       string
	Expression string
}

// AuditAnnotation is an expression whose value goes with the violations.
type AuditAnnotation struct {
	Key             string
	ValueExpression string
}

// Program is a compiled source. It is immutable.
type Program struct {
	// ReadsNamespace is true if the result may depend on namespaceObject. It is null
	// in match conditions, whatever the object.
	ReadsNamespace bool
	// Object and NamespaceObject are what the expressions may read of object and
	// namespaceObject.
	Object, NamespaceObject *paths.Tree
	// ReadsOldObject is true if an expression may read oldObject.
	ReadsOldObject bool
	// ReadsUserInfo is true if an expression may read request.userInfo.
	ReadsUserInfo bool
	// UsesAuthorizer is true if an expression may ask the authorizer.
	UsesAuthorizer bool

	source   Source
	names    fieldNames
	places   map[string][]string
	compiler *admissioncel.CompositedCompiler

	conditions  []admissioncel.CompilationResult
	validations []admissioncel.CompilationResult
	messages    []admissioncel.CompilationResult // empty where there is none
	annotations []admissioncel.CompilationResult
}

// What Places knows of.
const (
	NamespaceObject = "namespaceObject"
	OldObject       = "oldObject"
	UserInfo        = "request.userInfo"
	Authorizer      = "authorizer"

	object = "object"
)

// Places returns the fields of the source whose expressions may read one of
// NamespaceObject, OldObject, UserInfo and Authorizer, in the order of the source.
// A variable counts only if something that is evaluated uses it.
func (p *Program) Places(what string) []string { return slices.Clone(p.places[what]) }
