package policy

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

// Operations of requests.
const (
	OperationCreate = "CREATE"
	OperationUpdate = "UPDATE"
	OperationDelete = "DELETE"
)

// Request is an admission request for an object of a kind.
type Request struct {
	// UID identifies the request; it may be empty.
	UID string
	// Operation is one of OperationCreate, OperationUpdate and OperationDelete.
	Operation string
	// Object as it is to be, nil in a DELETE.
	Object *unstructured.Unstructured
	// OldObject as it is, nil in a CREATE.
	OldObject *unstructured.Unstructured
	// User who makes the request.
	User User
	// Options of the operation, such as CreateOptions, as a document. nil if there are
	// none.
	Options map[string]any
	DryRun  bool
	// Authorizer that ValidatingAdmissionPolicies may ask, nil if there is none.
	Authorizer cel.Asker
}

// User makes a request.
type User struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// NewRequest returns the object of a request for a kind, to be judged as an admission
// webhook would: the one that goes if it is a DELETE. namespace is nil if the object is
// in none or it is not known. Nothing of it may be modified any more.
func NewRequest(kind Kind, r Request, namespace *unstructured.Unstructured) *Object {
	o := &Object{kind: kind, obj: r.Object, namespace: namespace, request: &r}
	if r.Operation == OperationDelete {
		o.obj = r.OldObject
	}
	return o
}

// addRequest adds to input.review what only a request has, as it is in Gatekeeper's
// webhook.
func (o *Object) addRequest() {
	r, gvk := o.request, o.kind.GroupVersionKind
	kind := map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
	resource := map[string]any{"group": gvk.Group, "version": gvk.Version, "resource": o.kind.Resource}
	o.document["uid"] = r.UID
	o.document["kind"], o.document["requestKind"] = kind, kind
	o.document["resource"], o.document["requestResource"] = resource, resource
	o.document["operation"] = r.Operation
	o.document["userInfo"] = r.User.document()
	o.document["dryRun"] = r.DryRun
	if r.OldObject != nil {
		o.document["oldObject"] = r.OldObject.Object
	}
	if r.Options != nil {
		o.document["options"] = r.Options
	}
}

// document of the user in the form of userInfo, without what is empty.
func (u *User) document() map[string]any {
	out := map[string]any{}
	if u.Name != "" {
		out["username"] = u.Name
	}
	if u.UID != "" {
		out["uid"] = u.UID
	}
	if len(u.Groups) > 0 {
		out["groups"] = anySlice(u.Groups)
	}
	if len(u.Extra) > 0 {
		extra := make(map[string]any, len(u.Extra))
		for key, values := range u.Extra {
			extra[key] = anySlice(values)
		}
		out["extra"] = extra
	}
	return out
}

func anySlice(list []string) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

// celRequest is what CEL reads of the request, nil if there is none.
func (o *Object) celRequest() *cel.Request {
	if o.request == nil {
		return nil
	}
	return &cel.Request{
		OldObject: o.request.OldObject,
		User:      cel.User(o.request.User),
		Options:   o.request.Options,
		DryRun:    o.request.DryRun,

		Authorizer: o.request.Authorizer,
	}
}

// operation of the request, empty if there is none.
func (o *Object) operation() string {
	if o.request == nil {
		return ""
	}
	return o.request.Operation
}

// process of Gatekeeper whose part is taken.
func (o *Object) process() process {
	if o.request == nil {
		return processAudit
	}
	return processWebhook
}
