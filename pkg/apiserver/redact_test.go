package apiserver

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// recorder is an audit backend that keeps its events.
type recorder struct {
	audit.Backend
	events []*auditinternal.Event
}

func (r *recorder) ProcessEvents(events ...*auditinternal.Event) bool {
	r.events = append(r.events, events...)
	return len(events) > 1
}

// TestWithoutSecrets keeps what Secrets hold out of audit events, wherever a review has
// them, and everything else in.
func TestWithoutSecrets(t *testing.T) {
	const secret = `{"apiVersion":"v1","kind":"Secret","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{hidden}","team":"a"},"name":"s"},"data":{"a":"aGlkZGVu","b":null},"stringData":{"c":"hidden"},"type":"Opaque"}`
	const clean = `{"apiVersion":"v1","data":{"a":"REDACTED","b":"REDACTED"},"kind":"Secret","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"REDACTED","team":"a"},"name":"s"},"stringData":{"c":"REDACTED"},"type":"Opaque"}`
	for name, test := range map[string]struct{ in, want string }{
		"an object":         {`{"spec":{"object":` + secret + `}}`, `{"spec":{"object":` + clean + `}}`},
		"one of several":    {`{"spec":{"objects":[{"kind":"Pod"},` + secret + `]}}`, `{"spec":{"objects":[{"kind":"Pod"},` + clean + `]}}`},
		"the old one":       {`{"spec":{"oldObject":` + secret + `}}`, `{"spec":{"oldObject":` + clean + `}}`},
		"in a list":         {`{"spec":{"object":{"kind":"List","items":[` + secret + `]}}}`, `{"spec":{"object":{"items":[` + clean + `],"kind":"List"}}}`},
		"data that is none": {`{"apiVersion":"v1","kind":"Secret","data":"hidden"}`, `{"apiVersion":"v1","data":"REDACTED","kind":"Secret"}`},
		"a large number":    {`{"kind":"Secret","n":12345678901234567890}`, `{"kind":"Secret","n":12345678901234567890}`},
		"another kind":      {`{"kind":"ConfigMap", "data":{"a":"b"}}`, `{"kind":"ConfigMap", "data":{"a":"b"}}`},
		"not to be read":    {`{"kind":"Secret",`, ``},
		"Secrets of others": {`{"apiVersion":"vault.example.io/v1","kind":"Secret","data":{"a":"b"}}`, `{"apiVersion":"vault.example.io/v1","data":{"a":"b"},"kind":"Secret"}`},
	} {
		t.Run(name, func(t *testing.T) {
			sink := &recorder{}
			event := &auditinternal.Event{AuditID: "id", RequestObject: &runtime.Unknown{Raw: []byte(test.in)}, ResponseObject: &runtime.Unknown{Raw: []byte(test.in)}}
			if !WithoutSecrets(sink).ProcessEvents(event, &auditinternal.Event{AuditID: "other"}) || WithoutSecrets(sink).ProcessEvents(event) {
				t.Error("the answer of the backend is not passed on")
			}
			if len(sink.events) != 3 || sink.events[0].AuditID != "id" || sink.events[1].AuditID != "other" || sink.events[1].RequestObject != nil {
				t.Fatalf("events: %+v", sink.events)
			}
			for what, body := range map[string]*runtime.Unknown{"request": sink.events[0].RequestObject, "response": sink.events[0].ResponseObject} {
				got := ""
				if body != nil {
					got = string(body.Raw)
				}
				if got != test.want {
					t.Errorf("%s:\n got %s\nwant %s", what, got, test.want)
				}
			}
			if string(event.RequestObject.Raw) != test.in {
				t.Error("the event itself was changed")
			}
		})
	}
	if WithoutSecrets(nil) != nil {
		t.Error("no backend becomes one")
	}
}
