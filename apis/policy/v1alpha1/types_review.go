package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:onlyVerbs=create
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Review asks what the policies say of objects, before these exist or as they are. It
// is created like a SubjectAccessReview: the answer is in the status of what create
// returns, and nothing is stored.
type Review struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is not used.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the question.
	Spec ReviewSpec `json:"spec"`
	// status is the answer, filled in by the server.
	// +optional
	Status ReviewStatus `json:"status,omitempty"`
}

// +genclient
// +genclient:onlyVerbs=create
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// LocalReview is a Review of objects in its own namespace only, so that a Role can
// grant it.
type LocalReview struct {
	metav1.TypeMeta `json:",inline"`
	// metadata has the namespace.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the question. Its objects are in the namespace of the review: it is
	// filled in where they do not say.
	Spec ReviewSpec `json:"spec"`
	// status is the answer, filled in by the server.
	// +optional
	Status ReviewStatus `json:"status,omitempty"`
}

// ReviewSpec is what is asked. Exactly one of object, objects and resource is given; in
// a DELETE, oldObject may be instead.
type ReviewSpec struct {
	// object to judge. One of a namespaced kind that is in no namespace is taken for one
	// in the namespace default.
	// +optional
	Object *runtime.RawExtension `json:"object,omitempty"`
	// objects to judge, at most 100. Namespaces among them are those of the others.
	// +optional
	// +listType=atomic
	Objects []runtime.RawExtension `json:"objects,omitempty"`
	// resource refers to an object that exists. Who asks must have the right to get it.
	// In an UPDATE and a DELETE it is the old object as well.
	// +optional
	Resource *ReviewResource `json:"resource,omitempty"`
	// oldObject is what an UPDATE replaces or a DELETE removes.
	// +optional
	OldObject *runtime.RawExtension `json:"oldObject,omitempty"`
	// operation of the request that the object is judged as part of: CREATE, which is
	// the default, UPDATE or DELETE.
	// +optional
	Operation ReviewOperation `json:"operation,omitempty"`
	// userInfo is who makes that request: who asks, by default. Somebody else takes the
	// right to impersonate them.
	// +optional
	UserInfo *ReviewUser `json:"userInfo,omitempty"`
	// enforcementPoint whose constraints and actions are asked for, such as
	// validation.gatekeeper.sh. All of them, by default. At audit.gatekeeper.sh objects
	// are judged as the audit does, without operation and user.
	// +optional
	EnforcementPoint string `json:"enforcementPoint,omitempty"`
	// constraints to judge by: all, by default.
	// +optional
	// +listType=atomic
	Constraints []ReviewConstraint `json:"constraints,omitempty"`
	// explain asks for verdicts of constraints that do not match as well, with what
	// rules the object out.
	// +optional
	Explain bool `json:"explain,omitempty"`
	// namespaceObjects are Namespaces of the objects, in place of those that exist.
	// +optional
	// +listType=atomic
	NamespaceObjects []runtime.RawExtension `json:"namespaceObjects,omitempty"`
}

// ReviewOperation is the operation of a request.
// +enum
type ReviewOperation string

const (
	// ReviewCreate creates the object.
	ReviewCreate ReviewOperation = "CREATE"
	// ReviewUpdate replaces oldObject by the object.
	ReviewUpdate ReviewOperation = "UPDATE"
	// ReviewDelete removes oldObject.
	ReviewDelete ReviewOperation = "DELETE"
)

// ReviewResource refers to an object.
type ReviewResource struct {
	// apiVersion of the object, with its group, for example apps/v1.
	APIVersion string `json:"apiVersion"`
	// kind of the object.
	Kind string `json:"kind"`
	// namespace of the object, empty if it is in none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the object.
	Name string `json:"name"`
}

// ReviewUser is who makes a request. Groups that every user is in are added as
// impersonation does.
type ReviewUser struct {
	// username of the user, or system:serviceaccount:NAMESPACE:NAME.
	Username string `json:"username"`
	// uid of the user.
	// +optional
	UID string `json:"uid,omitempty"`
	// groups that the user is in.
	// +optional
	// +listType=atomic
	Groups []string `json:"groups,omitempty"`
	// extra is what else the authenticator says of the user.
	// +optional
	Extra map[string][]string `json:"extra,omitempty"`
}

// ReviewConstraint selects constraints.
type ReviewConstraint struct {
	// engine of the constraints, Gatekeeper or ValidatingAdmissionPolicy. Any if it is
	// empty.
	// +optional
	Engine string `json:"engine,omitempty"`
	// kind of the constraints; of ValidatingAdmissionPolicyBindings, the name of the
	// policy.
	Kind string `json:"kind"`
	// name of the constraint, all of the kind if it is empty.
	// +optional
	Name string `json:"name,omitempty"`
}

// ReviewStatus is the answer.
type ReviewStatus struct {
	// allowed is true if no constraint that denies fails, and none that denies could
	// not be judged.
	Allowed bool `json:"allowed"`
	// verdicts, one for each object and constraint, in the order of the objects and
	// then of the constraints. Constraints that do not match have one only if it was
	// asked to explain.
	// +optional
	// +listType=atomic
	Verdicts []ReviewVerdict `json:"verdicts,omitempty"`
	// evaluated is the number of verdicts of pass, fail and error.
	Evaluated int64 `json:"evaluated"`
	// failed is the number of verdicts of fail.
	Failed int64 `json:"failed"`
	// errors is the number of verdicts of error.
	Errors int64 `json:"errors"`
	// deferred is the number of verdicts of deferred.
	Deferred int64 `json:"deferred"`
	// notes say what the answer does not consider, or takes for granted.
	// +optional
	// +listType=atomic
	Notes []string `json:"notes,omitempty"`
	// policyDigest identifies the policies that the objects were judged by.
	// +optional
	PolicyDigest string `json:"policyDigest,omitempty"`
	// duration of the review.
	Duration metav1.Duration `json:"duration"`
}

// ReviewVerdict is what one constraint says of one object.
type ReviewVerdict struct {
	// index of the object in objects, 0 if there is one object only.
	Index int32 `json:"index"`
	// resource is the object that was judged.
	Resource ResourceReference `json:"resource"`
	// implied is the object that was judged instead: the Pod that a workload makes.
	// Messages of its verdicts begin with the mark [Implied by ...].
	// +optional
	Implied *ResourceReference `json:"implied,omitempty"`
	// constraint that the object was judged by, and its generation.
	Constraint ConstraintReference `json:"constraint"`
	// enforcementAction is the constraint's: deny, warn, dryrun, audit or scoped.
	EnforcementAction string `json:"enforcementAction"`
	// enforcementActions are those at the enforcement point, sorted.
	// +optional
	// +listType=set
	EnforcementActions []string `json:"enforcementActions,omitempty"`
	// result is what the constraint says.
	Result ReviewResult `json:"result"`
	// message says why the result is error or deferred.
	// +optional
	Message string `json:"message,omitempty"`
	// violations are what the policy says is wrong. Empty unless result is fail.
	// +optional
	// +listType=atomic
	Violations []Violation `json:"violations,omitempty"`
	// truncated is true if messages, details or violations were cut.
	// +optional
	Truncated bool `json:"truncated,omitempty"`
	// reason says what rules the object out if the result is notMatched.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// ReviewResult is the outcome of judging one object by one constraint.
// +enum
type ReviewResult string

const (
	// ReviewPass means that the object complies.
	ReviewPass ReviewResult = "pass"
	// ReviewFail means that the object violates the constraint.
	ReviewFail ReviewResult = "fail"
	// ReviewError means that the object could not be evaluated.
	ReviewError ReviewResult = "error"
	// ReviewDeferred means that the evaluation needs what is not there.
	ReviewDeferred ReviewResult = "deferred"
	// ReviewNotMatched means that the constraint is not for the object.
	ReviewNotMatched ReviewResult = "notMatched"
)
