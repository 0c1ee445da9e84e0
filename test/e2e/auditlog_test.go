package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"policy.example.io/policy-apiserver/test/framework"
)

const apiPath = "/apis/policy.example.io/v1alpha1"

// kubePolicy is how a kube-apiserver logs requests for findings.
const kubePolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: RequestResponse, resources: [{group: policy.example.io}]}
- {level: None}
`

// writeFile writes a file of a test and returns its path.
func writeFile(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// shippedAuditPolicy is the policy of artifacts/deploy/audit-log.
func shippedAuditPolicy() string {
	return filepath.Join(framework.DeployDir(), "audit-log", "policy.yaml")
}

// eventsOf returns the events of a request in an audit log.
func eventsOf(log, auditID string) ([]auditv1.Event, error) {
	data, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	var events []auditv1.Event
	for line := range bytes.Lines(data) {
		if !bytes.Contains(line, []byte(auditID)) {
			continue
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("%w: %s", err, line)
		}
		if string(event.AuditID) == auditID {
			events = append(events, event)
		}
	}
	return events, nil
}

// call makes a request and returns the Audit-ID of the answer, its status and body.
func call(t testing.TB, config *rest.Config, method, path, accept, body string) (auditID string, status int, answer string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Get("Audit-Id"), response.StatusCode, string(data)
}

// trailFixture has two findings in a namespace.
func trailFixture(t *testing.T, kind, ns string) {
	apply(t, template(kind), namespace(ns))
	remove(t, "constrainttemplate/"+strings.ToLower(kind), "namespace/"+ns)
	apply(t, constraint(kind, "owner-"+ns, "ConfigMap", ns, "owner"), configMap(ns, "a", ""), configMap(ns, "b", ""))
	found(t, 20*time.Second, ns, "owner-"+ns, "ConfigMap/a", "ConfigMap/b")
}

const (
	jsonType  = "application/json"
	tableType = "application/json;as=Table;v=v1;g=meta.k8s.io"
	// secretReview is a review of a Secret; what it holds must not be in any log.
	secretReview = `{"apiVersion": "policy.example.io/v1alpha1", "kind": "Review", "spec": {"object":
		{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "e2e-trail"}, "data": {"key": "dHJhaWwtc2VjcmV0"}, "stringData": {"other": "trail-secret"}}}}`
)

// TestAuditTrail asks through two kube-apiservers, each with a log of its own. Each
// request is in the log of the one that it went through and, if it got that far, in that
// of this server, under one Audit-ID.
func TestAuditTrail(t *testing.T) {
	trailFixture(t, "E2ETrail", "e2e-trail")
	dir := t.TempDir()
	policy := writeFile(t, dir, "kube-policy.yaml", kubePolicy)
	own := filepath.Join(dir, "own", "audit.log")
	apiServers, logs := map[string]*framework.APIServer{}, map[string]string{}
	for _, name := range []string{"one", "two"} {
		logs[name] = filepath.Join(dir, name+".log")
		apiServer, err := cp.AddAPIServer("kube-apiserver-"+name, "--audit-policy-file="+policy, "--audit-log-path="+logs[name])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(apiServer.Stop)
		apiServers[name] = apiServer
	}
	server.Stop(syscall.SIGTERM)
	if err := server.Start("--audit-policy-file="+shippedAuditPolicy(), "--audit-log-path="+own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop(syscall.SIGTERM)
		if err := server.Start(); err != nil {
			t.Error(err)
		}
	})
	alice, _, err := cp.User("trail-alice")
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, "create", "rolebinding", "alice", "-n", "e2e-trail", "--clusterrole=view", "--user=trail-alice")
	for name, apiServer := range apiServers {
		eventually(t, 30*time.Second, "answers through "+name, func() error {
			_, status, body := call(t, apiServer.Admin, http.MethodGet, apiPath+"/namespaces/e2e-trail/auditresults", jsonType, "")
			return expect(fmt.Sprint(status), "200", nilUnless(status != 200, body))
		})
		eventually(t, 30*time.Second, "rights of alice", func() error {
			_, status, body := call(t, at(alice, apiServer), http.MethodGet, apiPath+"/namespaces/e2e-trail/auditresults", jsonType, "")
			return expect(fmt.Sprint(status), "200", nilUnless(status != 200, body))
		})
	}
	name := kubectl(t, "get", "ar", "-n", "e2e-trail", "-o", "jsonpath={.items[0].metadata.name}")
	asAlice := rest.CopyConfig(apiServers["two"].Admin)
	asAlice.Impersonate.UserName = "trail-alice"

	unscoped := func(rows string) map[string]string {
		return map[string]string{"policy.example.io/scope": "unscoped", "policy.example.io/rows": rows}
	}
	scoped := func(rows string) map[string]string {
		return map[string]string{"policy.example.io/scope": "scoped", "policy.example.io/scope-namespaces": "1", "policy.example.io/rows": rows}
	}
	inNamespace := apiPath + "/namespaces/e2e-trail/auditresults"
	for _, test := range []struct {
		what, through      string
		config             *rest.Config
		method, path       string
		accept, body       string
		status             int
		user, impersonated string
		notOurs            bool // does not get as far as this server
		verb               string
		annotations        map[string]string
	}{
		{what: "list", through: "one", status: 200, path: inNamespace, user: "admin", verb: "list", annotations: unscoped("2")},
		{what: "page", through: "two", status: 200, path: inNamespace + "?limit=1", user: "admin", verb: "list", annotations: unscoped("1")},
		{what: "table", through: "one", status: 200, path: inNamespace, accept: tableType, user: "admin", verb: "list", annotations: unscoped("2")},
		{what: "nothing", through: "two", status: 200, path: inNamespace + "?fieldSelector=result=error", user: "admin", verb: "list", annotations: unscoped("0")},
		{what: "scoped list", through: "two", config: at(alice, apiServers["two"]), status: 200, path: inNamespace, user: "trail-alice", verb: "list", annotations: scoped("2")},
		{what: "get", through: "one", config: at(alice, apiServers["one"]), status: 200, path: inNamespace + "/" + name, user: "trail-alice", verb: "get", annotations: map[string]string{"policy.example.io/scope": "scoped", "policy.example.io/rows": "1"}},
		{what: "not found", through: "one", status: 404, path: inNamespace + "/missing", user: "admin", verb: "get", annotations: map[string]string{"policy.example.io/scope": "unscoped"}},
		{what: "watch", through: "two", status: 200, path: inNamespace + "?watch=true&timeoutSeconds=1", user: "admin", verb: "watch", annotations: unscoped("2")},
		{what: "forbidden", through: "one", config: at(alice, apiServers["one"]), status: 403, path: apiPath + "/auditruns", user: "trail-alice", notOurs: true, verb: "list"},
		{what: "impersonated", through: "two", config: asAlice, status: 200, path: inNamespace, user: "admin", impersonated: "trail-alice", verb: "list", annotations: scoped("2")},
		{what: "review", through: "one", status: 201, method: http.MethodPost, path: apiPath + "/reviews", body: secretReview, user: "admin", verb: "create", annotations: map[string]string{"policy.example.io/review-allowed": "true"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			if test.config == nil {
				test.config = apiServers[test.through].Admin
			}
			if test.method == "" {
				test.method = http.MethodGet
			}
			if test.accept == "" {
				test.accept = jsonType
			}
			id, status, answer := call(t, test.config, test.method, test.path, test.accept, test.body)
			if id == "" || status != test.status {
				t.Fatalf("status %d, Audit-ID %q: %s", status, id, answer)
			}
			var theirs, ours []auditv1.Event
			eventually(t, 10*time.Second, "events", func() error {
				var err error
				if theirs, err = eventsOf(logs[test.through], id); err != nil {
					return err
				}
				if !complete(theirs) {
					return fmt.Errorf("the kube-apiserver has %d events", len(theirs))
				}
				if ours, err = eventsOf(own, id); err == nil && complete(ours) == test.notOurs {
					err = fmt.Errorf("this server has %d events", len(ours))
				}
				return err
			})
			for name, log := range logs {
				if events, err := eventsOf(log, id); err != nil || name != test.through && len(events) > 0 {
					t.Errorf("the log of %s has %d events, %v", name, len(events), err)
				}
			}
			last := theirs[len(theirs)-1]
			if last.User.Username != test.user || last.Verb != test.verb || int(last.ResponseStatus.Code) != test.status {
				t.Errorf("the kube-apiserver's event: %+v", last)
			}
			if who := last.ImpersonatedUser; test.impersonated != "" && (who == nil || who.Username != test.impersonated) {
				t.Errorf("impersonated is %+v", who)
			}
			if test.notOurs {
				return
			}
			if last.RequestObject != nil || last.ResponseObject != nil {
				t.Error("the kube-apiserver has the body of what it passed on")
			}
			stages := []string{"ResponseComplete"}
			if test.verb == "watch" {
				stages = []string{"ResponseStarted", "ResponseComplete"}
			}
			var got []string
			for _, event := range ours {
				got = append(got, string(event.Stage))
			}
			if !slices.Equal(got, stages) {
				t.Errorf("stages are %v, want %v", got, stages)
			}
			last = ours[len(ours)-1]
			// Behind the aggregation layer the user is who is impersonated.
			user := test.user
			if test.impersonated != "" {
				user = test.impersonated
			}
			if last.User.Username != user || last.Verb != test.verb || int(last.ResponseStatus.Code) != test.status || last.ObjectRef.APIGroup != "policy.example.io" {
				t.Errorf("this server's event: %+v", last)
			}
			for key, want := range test.annotations {
				if last.Annotations[key] != want {
					t.Errorf("annotation %s is %q, want %q", key, last.Annotations[key], want)
				}
			}
			if (last.RequestObject != nil) != (test.verb == "create") || last.ResponseObject != nil {
				t.Errorf("level %s: request %v, response %v", last.Level, last.RequestObject, last.ResponseObject)
			}
		})
	}
	for _, log := range []string{own, logs["one"], logs["two"]} {
		data, err := os.ReadFile(log)
		if err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", log, len(data), err)
		}
		for _, text := range []string{"trail-secret", "dHJhaWwtc2VjcmV0", "/readyz", "/openapi"} {
			if strings.Contains(string(data), text) {
				t.Errorf("%s has %q", log, text)
			}
		}
		if log == own && !strings.Contains(string(data), `"data":{"key":"REDACTED"}`) {
			t.Error("the review is not in the log")
		}
	}
	if events, rejected := metric(t, "apiserver_audit_event_total"), metric(t, "apiserver_audit_requests_rejected_total"); events < 12 || rejected != 0 {
		t.Errorf("apiserver_audit_event_total is %v, apiserver_audit_requests_rejected_total %v", events, rejected)
	}
}

// at sends a user's requests through a kube-apiserver.
func at(config *rest.Config, apiServer *framework.APIServer) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = apiServer.Admin.Host
	return config
}

// complete tells whether the last event of a request is there.
func complete(events []auditv1.Event) bool {
	return len(events) > 0 && events[len(events)-1].Stage == auditv1.StageResponseComplete
}

// nilUnless returns an error with a text if there is one.
func nilUnless(failed bool, text string) error {
	if !failed {
		return nil
	}
	return fmt.Errorf("%.300s", text)
}
