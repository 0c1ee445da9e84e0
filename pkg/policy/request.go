package policy

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/cel"
)

// Operations of requests.
const (
	OperationCreate  = "CREATE"
	OperationUpdate  = "UPDATE"
	OperationDelete  = "DELETE"
	OperationConnect = "CONNECT"
)

// Request is an admission request for an object of a kind.
type Request struct {
	// UID identifies the request; it may be empty.
	UID string
	// Operation is one of OperationCreate, OperationUpdate, OperationDelete and
	// OperationConnect.
	Operation string
	// Object as it is to be, nil in a DELETE. In a CONNECT it is the options.
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
	// Attributes of the request. nil if they are those of the object, whose kind and name
	// the request is for then.
	Attributes *Attributes
}

// Attributes are what a request is for. Where it is for a subresource, its object may be
// of another kind and have neither name nor namespace.
type Attributes = cel.Attributes

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
	kind, resource := kindDocument(gvk), resourceDocument(o.resource())
	o.document["uid"] = r.UID
	o.document["kind"], o.document["requestKind"] = kind, kind
	o.document["resource"], o.document["requestResource"] = resource, resource
	if a := r.Attributes; a != nil {
		o.document["requestKind"], o.document["requestResource"] = kindDocument(a.RequestKind), resourceDocument(a.RequestResource)
		for field, value := range map[string]string{
			"name": a.Name, "namespace": a.Namespace, "subResource": a.Subresource, "requestSubResource": a.RequestSubresource,
		} {
			if delete(o.document, field); value != "" {
				o.document[field] = value
			}
		}
	}
	o.document["userInfo"] = r.User.document()
	o.document["dryRun"] = r.DryRun
	if r.OldObject != nil {
		o.document["oldObject"] = r.OldObject.Object
	}
	if r.Options != nil {
		o.document["options"] = r.Options
	}
}

func kindDocument(gvk schema.GroupVersionKind) map[string]any {
	return map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
}

func resourceDocument(gvr schema.GroupVersionResource) map[string]any {
	return map[string]any{"group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource}
}

// resource that the request is for.
func (o *Object) resource() schema.GroupVersionResource {
	if o.request != nil && o.request.Attributes != nil {
		return o.request.Attributes.Resource
	}
	return o.kind.GroupVersion().WithResource(o.kind.Resource)
}

// namespaceName is the namespace that the object, or the request for it, is in.
func (o *Object) namespaceName() string {
	if o.request != nil && o.request.Attributes != nil {
		return o.request.Attributes.Namespace
	}
	return o.obj.GetNamespace()
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
		Attributes: o.request.Attributes,
	}
}

// operation of the request for the object, or for what it is a resultant of; empty if
// there is none.
func (o *Object) operation() string {
	if o.request == nil {
		return o.madeBy
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
