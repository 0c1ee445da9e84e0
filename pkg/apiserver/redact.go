package apiserver

import (
	"bytes"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// redacted is in audit events in the place of what a Secret holds.
const redacted = "REDACTED"

// withoutSecrets is an audit backend that gets events without what Secrets hold. A
// policy can log the bodies of reviews, and no policy can tell a review of a Secret
// from others.
type withoutSecrets struct{ audit.Backend }

// WithoutSecrets returns a backend that keeps what Secrets hold from another one; nil
// for nil. Names and keys are kept.
func WithoutSecrets(backend audit.Backend) audit.Backend {
	if backend == nil {
		return nil
	}
	return withoutSecrets{backend}
}

// ProcessEvents implements audit.Sink. Events are used again for the next stage of a
// request, so they are not changed.
func (w withoutSecrets) ProcessEvents(events ...*auditinternal.Event) bool {
	clean := make([]*auditinternal.Event, len(events))
	for i, event := range events {
		out := *event
		out.RequestObject, out.ResponseObject = redact(event.RequestObject), redact(event.ResponseObject)
		clean[i] = &out
	}
	return w.Backend.ProcessEvents(clean...)
}

// redact returns a body without what Secrets hold, nil if it cannot be understood.
func redact(body *runtime.Unknown) *runtime.Unknown {
	if body == nil || !bytes.Contains(body.Raw, []byte("Secret")) {
		return body
	}
	decoder := json.NewDecoder(bytes.NewReader(body.Raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil
	}
	redactValue(value)
	raw, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	out := *body
	out.Raw = raw
	return &out
}

// redactValue looks for Secrets at any depth: objects, lists of them, and what is
// posted with them.
func redactValue(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			redactValue(item)
		}
	case map[string]any:
		if v["kind"] == "Secret" && v["apiVersion"] == "v1" {
			redactSecret(v)
			return
		}
		for _, field := range v {
			redactValue(field)
		}
	}
}

func redactSecret(secret map[string]any) {
	for _, field := range []string{"data", "stringData"} {
		switch data := secret[field].(type) {
		case nil:
		case map[string]any:
			for key := range data {
				data[key] = redacted
			}
		default:
			secret[field] = redacted
		}
	}
	metadata, _ := secret["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	// kubectl apply keeps the whole Secret here.
	if _, ok := annotations[corev1.LastAppliedConfigAnnotation]; ok {
		annotations[corev1.LastAppliedConfigAnnotation] = redacted
	}
}

var _ audit.Backend = withoutSecrets{}
