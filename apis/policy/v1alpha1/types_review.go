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

// ReviewSpec is what is asked. Exactly one of object, objects, resource and scope is
// given; in a DELETE, oldObject may be instead.
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
	// scope asks about the objects that exist, as the audit judges them: what a policy
	// would find. The answer counts, and lists the first findings.
	// +optional
	Scope *ReviewScope `json:"scope,omitempty"`
	// candidatePolicies are policies that are not installed, to judge by in this review
	// only: ConstraintTemplates, constraints, ValidatingAdmissionPolicies, their bindings
	// and params, and ExpansionTemplates, at most 100. One takes the place of the
	// installed one of its name; constraints of a template that is given, and bindings of
	// a policy, are judged by too if they are installed. It takes the right to create the
	// subresource candidates.
	// +optional
	// +listType=atomic
	CandidatePolicies []runtime.RawExtension `json:"candidatePolicies,omitempty"`
	// withInstalled judges by the installed policies too if there are candidatePolicies.
	// +optional
	WithInstalled bool `json:"withInstalled,omitempty"`
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

// ReviewScope selects objects that exist. Objects that who asks may not list are left
// out, and named in the answer.
type ReviewScope struct {
	// kinds of the objects: those that the constraints select, by default.
	// +optional
	// +listType=atomic
	Kinds []ReviewKind `json:"kinds,omitempty"`
	// namespaces of the objects, at most 100: all, by default. With them, objects of kinds
	// that are in no namespace are left out.
	// +optional
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`
	// labelSelector of the objects: any, by default.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// limit is how many findings are listed: 100 by default, 1000 at most. All are
	// counted.
	// +optional
	Limit *int32 `json:"limit,omitempty"`
}

// ReviewKind is a kind of objects, in any version.
type ReviewKind struct {
	// apiGroup of the kind, empty for the core group.
	// +optional
	APIGroup string `json:"apiGroup,omitempty"`
	// kind of the objects.
	Kind string `json:"kind"`
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
	// not be judged; with a scope, only if the answer is complete as well.
	Allowed bool `json:"allowed"`
	// verdicts, one for each object and constraint, in the order of the objects and
	// then of the constraints. Constraints that do not match have one only if it was
	// asked to explain. With a scope, the first ones of fail, error and deferred, by kind,
	// namespace and name.
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
	// impact is the answer as to a scope.
	// +optional
	Impact *ReviewImpact `json:"impact,omitempty"`
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

// ReviewImpact is what constraints say of the objects that exist.
type ReviewImpact struct {
	// complete is true if all objects of the scope were judged: notJudged is empty. There
	// may be errors and deferred verdicts all the same.
	Complete bool `json:"complete"`
	// objects is how many were judged.
	Objects int64 `json:"objects"`
	// kinds of the objects, with what was found, by group and kind.
	// +optional
	// +listType=atomic
	Kinds []ReviewCount `json:"kinds,omitempty"`
	// counts by namespace and kind, where something was found, at most 1000.
	// +optional
	// +listType=atomic
	Counts []ReviewCount `json:"counts,omitempty"`
	// constraints that the objects were judged by.
	// +optional
	// +listType=atomic
	Constraints []ReviewConstraintCount `json:"constraints,omitempty"`
	// notJudged are objects of the scope that were left out, at most 200 entries.
	// +optional
	// +listType=atomic
	NotJudged []ReviewNotJudged `json:"notJudged,omitempty"`
}

// ReviewTotals count what was found. All but failedObjects are numbers of verdicts.
type ReviewTotals struct {
	// failedObjects is the number of objects that at least one constraint says fail of.
	FailedObjects int64 `json:"failedObjects"`
	// failed is the number of verdicts of fail.
	Failed int64 `json:"failed"`
	// errors is the number of verdicts of error.
	Errors int64 `json:"errors"`
	// deferred is the number of verdicts of deferred.
	Deferred int64 `json:"deferred"`
}

// ReviewCount counts what was found of a kind, or of a kind in a namespace.
type ReviewCount struct {
	// namespace of the objects, empty for all of them and for those that are in none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// apiGroup of the kind, empty for the core group.
	// +optional
	APIGroup string `json:"apiGroup,omitempty"`
	// kind of the objects.
	Kind string `json:"kind"`
	// objects is how many were judged.
	Objects int64 `json:"objects"`

	ReviewTotals `json:",inline"`
}

// ReviewConstraintCount counts what a constraint found.
type ReviewConstraintCount struct {
	// constraint that the objects were judged by.
	Constraint ConstraintReference `json:"constraint"`
	// enforcementActions are those at the enforcement point, sorted.
	// +optional
	// +listType=set
	EnforcementActions []string `json:"enforcementActions,omitempty"`
	// evaluated is the number of verdicts of pass, fail and error.
	Evaluated int64 `json:"evaluated"`

	ReviewTotals `json:",inline"`
}

// ReviewNotJudged names objects that were not judged, and why.
type ReviewNotJudged struct {
	// apiGroup of the kind, empty for the core group.
	// +optional
	APIGroup string `json:"apiGroup,omitempty"`
	// kind of the objects, empty for all of the group.
	// +optional
	Kind string `json:"kind,omitempty"`
	// namespace of the objects, empty if it is not one only.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// reason in a word.
	Reason ReviewNotJudgedReason `json:"reason"`
	// message says why.
	Message string `json:"message"`
}

// ReviewNotJudgedReason says why objects were not judged.
// +enum
type ReviewNotJudgedReason string

const (
	// NotJudgedForbidden means that who asks may not list them.
	NotJudgedForbidden ReviewNotJudgedReason = "Forbidden"
	// NotJudgedUnlisted means that the server cannot list them, or not all of them.
	NotJudgedUnlisted ReviewNotJudgedReason = "Unlisted"
	// NotJudgedDeadline means that the time of the request was up.
	NotJudgedDeadline ReviewNotJudgedReason = "Deadline"
)
