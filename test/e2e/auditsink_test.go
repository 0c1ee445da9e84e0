package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"policy.example.io/policy-apiserver/test/framework"
)

// auditSink is a webhook for audit events.
type auditSink struct {
	url string
	mu  sync.Mutex // protects the fields below
	// status of its answers; if it is 0 there is none until release is closed.
	status  int
	release chan struct{}
	events  []auditv1.Event
}

func newAuditSink(t *testing.T, status int) *auditSink {
	s := &auditSink{status: status, release: make(chan struct{})}
	server := httptest.NewServer(s)
	s.url = server.URL
	t.Cleanup(server.Close)
	t.Cleanup(func() { s.set(http.StatusOK) })
	return s
}

func (s *auditSink) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	status, release := s.status, s.release
	s.mu.Unlock()
	var list auditv1.EventList
	err := json.NewDecoder(req.Body).Decode(&list)
	if status == 0 {
		<-release
		status = http.StatusOK
	}
	if err == nil && status == http.StatusOK {
		s.mu.Lock()
		s.events = append(s.events, list.Items...)
		s.mu.Unlock()
	}
	w.WriteHeader(status)
}

// set changes the status and ends the wait for it.
func (s *auditSink) set(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
	if status != 0 {
		select {
		case <-s.release:
		default:
			close(s.release)
		}
	}
}

// event returns the last event of a request.
func (s *auditSink) event(auditID string) *auditv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.events) - 1; i >= 0; i-- {
		if string(s.events[i].AuditID) == auditID {
			return &s.events[i]
		}
	}
	return nil
}

// startAudited starts a further server with audit flags.
func startAudited(t *testing.T, args ...string) *framework.Instance {
	t.Helper()
	instance, err := server.StartInstance(t.TempDir(), server.Kubeconfig(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(instance.Stop)
	if err := instance.WaitReady("/readyz", 90*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := instance.WaitReady(apiPath+"/auditresults", 30*time.Second); err != nil {
		t.Fatal(err)
	}
	return instance
}

// webhookFlags send events to a sink at once, or give up after a few quick attempts.
func webhookFlags(t *testing.T, sink *auditSink, mode string) []string {
	dir := t.TempDir()
	kubeconfig := writeFile(t, dir, "sink.kubeconfig", fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: sink, cluster: {server: %q}}]
contexts: [{name: sink, context: {cluster: sink, user: ""}}]
current-context: sink
`, sink.url))
	policy := writeFile(t, dir, "policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
rules: [{level: Request, resources: [{group: policy.example.io, resources: [reviews]}]}, {level: Metadata, resources: [{group: policy.example.io}]}]
`)
	return []string{
		"--audit-policy-file=" + policy, "--audit-webhook-config-file=" + kubeconfig, "--audit-webhook-mode=" + mode,
		"--audit-webhook-initial-backoff=1ms",
	}
}

func instanceMetric(t *testing.T, instance *framework.Instance, prefix string) float64 {
	t.Helper()
	value, err := instance.Metric(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestAuditSink has webhooks for sinks, in all modes, that answer, stall and refuse.
func TestAuditSink(t *testing.T) {
	t.Run("batch", func(t *testing.T) {
		sink := newAuditSink(t, http.StatusOK)
		instance := startAudited(t, append(webhookFlags(t, sink, "batch"),
			"--audit-webhook-batch-max-size=20", "--audit-webhook-batch-max-wait=100ms", "--audit-webhook-batch-buffer-size=100",
			"--audit-webhook-batch-throttle-qps=1", "--audit-webhook-batch-throttle-burst=5",
			"--audit-webhook-truncate-enabled", "--audit-webhook-truncate-max-event-size=3000", "--audit-webhook-truncate-max-batch-size=4000")...)
		id, status, answer := call(t, instance.Config, http.MethodPost, apiPath+"/reviews", jsonType, secretReview)
		if status != http.StatusCreated {
			t.Fatalf("%d: %s", status, answer)
		}
		eventually(t, 20*time.Second, "the event", func() error {
			if event := sink.event(id); event == nil || event.Stage != auditv1.StageResponseComplete {
				return fmt.Errorf("it is %+v", event)
			}
			return nil
		})
		if event := sink.event(id); event.RequestObject == nil || !strings.Contains(string(event.RequestObject.Raw), "REDACTED") {
			t.Errorf("the request is %v", event.RequestObject)
		}
		large := strings.Replace(secretReview, `"name": "s"`, `"name": "s", "labels": {"l": "`+strings.Repeat("x", 4000)+`"}`, 1)
		id, _, _ = call(t, instance.Config, http.MethodPost, apiPath+"/reviews", jsonType, large)
		eventually(t, 20*time.Second, "the large event", func() error {
			event := sink.event(id)
			if event == nil || event.Annotations["audit.k8s.io/truncated"] != "true" || event.RequestObject != nil {
				return fmt.Errorf("it is %+v", event)
			}
			return nil
		})
		// A sink that stalls loses events, which is counted, and holds up nobody.
		sink.set(0)
		sink.mu.Lock()
		sink.release = make(chan struct{})
		sink.mu.Unlock()
		before := instanceMetric(t, instance, "apiserver_audit_event_total")
		eventually(t, 60*time.Second, "a full buffer", func() error {
			for range 100 {
				if _, status, answer := call(t, instance.Config, http.MethodGet, apiPath+"/auditruns?limit=1", jsonType, ""); status != http.StatusOK {
					t.Fatalf("%d: %s", status, answer)
				}
			}
			if lost := instanceMetric(t, instance, `apiserver_audit_error_total{plugin="buffered"`); lost == 0 {
				return fmt.Errorf("no event is lost")
			}
			return nil
		})
		if after := instanceMetric(t, instance, "apiserver_audit_event_total"); after <= before {
			t.Errorf("apiserver_audit_event_total was %v and is %v", before, after)
		}
	})
	t.Run("blocking", func(t *testing.T) {
		sink := newAuditSink(t, http.StatusOK)
		instance := startAudited(t, webhookFlags(t, sink, "blocking")...)
		id, _, _ := call(t, instance.Config, http.MethodGet, apiPath+"/auditruns?limit=1", jsonType, "")
		if event := sink.event(id); event == nil {
			t.Error("there was an answer before there was an event")
		}
		sink.set(http.StatusInternalServerError)
		if _, status, answer := call(t, instance.Config, http.MethodGet, apiPath+"/auditruns?limit=1", jsonType, ""); status != http.StatusOK {
			t.Errorf("%d: %s", status, answer)
		}
		if lost := instanceMetric(t, instance, `apiserver_audit_error_total{plugin="webhook"`); lost == 0 {
			t.Error("the event that was lost is not counted")
		}
		if rejected := instanceMetric(t, instance, "apiserver_audit_requests_rejected_total"); rejected != 0 {
			t.Errorf("%v requests were rejected", rejected)
		}
	})
	t.Run("blocking-strict", func(t *testing.T) {
		sink := newAuditSink(t, http.StatusOK)
		instance := startAudited(t, webhookFlags(t, sink, "blocking-strict")...)
		sink.set(http.StatusInternalServerError)
		if _, status, answer := call(t, instance.Config, http.MethodGet, apiPath+"/auditruns?limit=1", jsonType, ""); status != http.StatusInternalServerError || !strings.Contains(answer, "audit event") {
			t.Errorf("%d: %s", status, answer)
		}
		if rejected := instanceMetric(t, instance, "apiserver_audit_requests_rejected_total"); rejected != 1 {
			t.Errorf("%v requests were rejected", rejected)
		}
		sink.set(http.StatusOK)
		if _, status, answer := call(t, instance.Config, http.MethodGet, apiPath+"/auditruns?limit=1", jsonType, ""); status != http.StatusOK {
			t.Errorf("%d: %s", status, answer)
		}
	})
}

// TestAuditFiles rotates the log, and logs answers as a policy of another's may have it.
func TestAuditFiles(t *testing.T) {
	trailFixture(t, "E2EFiles", "e2e-files")
	dir := t.TempDir()
	policy := writeFile(t, dir, "policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules: [{level: RequestResponse, resources: [{group: policy.example.io}]}]
`)
	log := filepath.Join(dir, "audit.log")
	instance := startAudited(t, "--audit-policy-file="+policy, "--audit-log-path="+log, "--audit-log-maxsize=1", "--audit-log-maxbackup=2")
	inNamespace := apiPath + "/namespaces/e2e-files/auditresults"
	for accept, key := range map[string]string{jsonType: "items", tableType: "rows"} {
		id, status, answer := call(t, instance.Config, http.MethodGet, inNamespace, accept, "")
		if status != http.StatusOK {
			t.Fatalf("%d: %s", status, answer)
		}
		var events []auditv1.Event
		eventually(t, 10*time.Second, "the event", func() error {
			var err error
			if events, err = eventsOf(log, id); err == nil && !complete(events) {
				err = fmt.Errorf("%d events", len(events))
			}
			return err
		})
		var sent, logged map[string]any
		if err := json.Unmarshal([]byte(answer), &sent); err != nil {
			t.Fatal(err)
		}
		if body := events[0].ResponseObject; body == nil || json.Unmarshal(body.Raw, &logged) != nil {
			t.Fatalf("%s: the response is %v", accept, body)
		}
		items, _ := logged["items"].([]any)
		if want, _ := sent[key].([]any); len(want) != 2 || len(items) != 2 && key == "items" {
			t.Errorf("%s: sent %d, logged %v", accept, len(want), logged)
		}
		if rows := events[0].Annotations["policy.example.io/rows"]; rows != "2" {
			t.Errorf("%s: rows is %q", accept, rows)
		}
	}
	eventually(t, 60*time.Second, "rotation", func() error {
		for range 50 {
			call(t, instance.Config, http.MethodGet, inNamespace, jsonType, "")
		}
		files, err := filepath.Glob(filepath.Join(dir, "audit-*.log"))
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("there is one file")
		}
		return err
	})
}
