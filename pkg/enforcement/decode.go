package enforcement

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// maxRequestBytes is what the object and the old object may have in a request to the
// kube-apiserver, 3 MiB each, and 1 MiB for the rest.
const maxRequestBytes = 7 << 20

const reviewKind = "AdmissionReview"

// resource of statuses.
var resource = schema.GroupResource{Group: admissionv1.GroupName, Resource: "admissionreviews"}

// decode reads the request of an admission review. The error is one of the API.
func decode(out http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, error) {
	if r.Method != http.MethodPost {
		return nil, apierrors.NewMethodNotSupported(resource, r.Method)
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != runtime.ContentTypeJSON {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "post", resource, "",
			fmt.Sprintf("the Content-Type is %q; an AdmissionReview is sent as application/json", r.Header.Get("Content-Type")), 0, true)
	}
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, maxRequestBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("an AdmissionReview has at most %d bytes", maxRequestBytes))
	case err != nil:
		return nil, apierrors.NewBadRequest("the body cannot be read: " + err.Error())
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, apierrors.NewBadRequest("the body is no AdmissionReview: " + err.Error())
	}
	gvk := review.GroupVersionKind()
	switch {
	case gvk != admissionv1.SchemeGroupVersion.WithKind(reviewKind):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %q of %q; it has to be an AdmissionReview of %s, which admissionReviewVersions: [v1] of the webhook asks for",
			gvk.Kind, review.APIVersion, admissionv1.SchemeGroupVersion))
	case review.Request == nil:
		return nil, apierrors.NewBadRequest("the AdmissionReview has no request")
	case review.Request.UID == "":
		return nil, apierrors.NewBadRequest("the request has no uid")
	case review.Request.Kind.Kind == "" || review.Request.Resource.Resource == "":
		return nil, apierrors.NewBadRequest("the request has no kind, or no resource")
	}
	return review.Request, nil
}

// subject returns the request as the engine judges it, in the namespace that it is in.
func subject(r *admissionv1.AdmissionRequest) (policy.Kind, policy.Request, error) {
	kind := policy.Kind{GroupVersionKind: schema.GroupVersionKind(r.Kind), Resource: r.Resource.Resource, Namespaced: r.Namespace != "" && !isNamespace(r)}
	out := policy.Request{
		UID:       string(r.UID),
		Operation: string(r.Operation),
		User:      policy.User{Name: r.UserInfo.Username, UID: r.UserInfo.UID, Groups: r.UserInfo.Groups},
		DryRun:    r.DryRun != nil && *r.DryRun,
		Attributes: &policy.Attributes{
			Name:               r.Name,
			Resource:           schema.GroupVersionResource(r.Resource),
			Subresource:        r.SubResource,
			RequestKind:        schema.GroupVersionKind(r.Kind),
			RequestResource:    schema.GroupVersionResource(r.Resource),
			RequestSubresource: r.RequestSubResource,
		},
	}
	if kind.Namespaced {
		out.Attributes.Namespace = r.Namespace
	}
	if r.RequestKind != nil {
		out.Attributes.RequestKind = schema.GroupVersionKind(*r.RequestKind)
	}
	if r.RequestResource != nil {
		out.Attributes.RequestResource = schema.GroupVersionResource(*r.RequestResource)
	}
	if len(r.UserInfo.Extra) > 0 {
		out.User.Extra = make(map[string][]string, len(r.UserInfo.Extra))
		for key, values := range r.UserInfo.Extra {
			out.User.Extra[key] = values
		}
	}
	fail := func(err error) (policy.Kind, policy.Request, error) {
		return kind, out, apierrors.NewBadRequest(err.Error())
	}
	options, err := document("request.options", r.Options)
	if err != nil {
		return fail(err)
	}
	out.Options = options
	object, err := document("request.object", r.Object)
	if err != nil {
		return fail(err)
	}
	old, err := document("request.oldObject", r.OldObject)
	if err != nil {
		return fail(err)
	}
	if object != nil {
		out.Object = &unstructured.Unstructured{Object: object}
	}
	if old != nil {
		out.OldObject = &unstructured.Unstructured{Object: old}
	}
	switch r.Operation {
	case admissionv1.Create, admissionv1.Update:
		if object == nil {
			return fail(fmt.Errorf("request.object is missing, and the operation is %s", r.Operation))
		}
	case admissionv1.Delete:
		if old == nil {
			return fail(errors.New("request.oldObject is missing, and the operation is DELETE"))
		}
		out.Object = nil
	case admissionv1.Connect:
		if object == nil { // options of the connection, which may have none
			out.Object = &unstructured.Unstructured{Object: map[string]any{}}
			out.Object.SetGroupVersionKind(kind.GroupVersionKind)
		}
	default:
		return fail(fmt.Errorf("request.operation is %q; it is CREATE, UPDATE, DELETE or CONNECT", r.Operation))
	}
	return kind, out, nil
}

// document decodes an object as the engine reads it, nil if there is none.
func document(path string, raw runtime.RawExtension) (map[string]any, error) {
	if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
		return nil, nil
	}
	var content map[string]any
	if err := utiljson.Unmarshal(raw.Raw, &content); err != nil {
		return nil, fmt.Errorf("%s is not an object: %w", path, err)
	}
	return content, nil
}

// isNamespace tells whether a request is for a Namespace. The API server says that it is
// in the namespace of its name, and Gatekeeper that it is in none.
func isNamespace(r *admissionv1.AdmissionRequest) bool {
	return r.Kind.Group == "" && r.Kind.Kind == "Namespace"
}
