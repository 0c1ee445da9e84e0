package enforcement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/yaml"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// says is a template whose constraints say what their parameters name of a request.
const says = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: says}
spec:
  crd: {spec: {names: {kind: Says}, validation: {openAPIV3Schema: {type: object, properties: {field: {type: string}, broken: {type: boolean}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg}] { f := input.parameters.field; msg := sprintf("%v is %v", [f, input.review[f]]) }
      violation[{"msg": msg}] { input.parameters.broken; msg := input.review.object.metadata.labels }
`

const referential = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: referential}
spec:
  crd: {spec: {names: {kind: Referential}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": msg}] { data.inventory.namespace[_]["v1"]["ConfigMap"][msg] }
`

const expansion = `
apiVersion: expansion.gatekeeper.sh/v1beta1
kind: ExpansionTemplate
metadata: {name: pods}
spec:
  applyTo: [{groups: [apps], versions: [v1], kinds: [Deployment]}]
  templateSource: spec.template
  generatedGVK: {group: "", version: v1, kind: Pod}
`

const endless = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: endless}
spec:
  crd: {spec: {names: {kind: Endless}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package a
      violation[{"msg": "never"}] { count([1 | x := numbers.range(1, 3000)[_]; y := numbers.range(1, 3000)[_]; z := numbers.range(1, 3000)[_]; x + y + z < 0]) > 0 }
`

// constraint of a kind. spec is indented by nothing.
func constraint(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: %s\nmetadata: {name: %s}\nspec: {%s}\n", kind, name, spec)
}

// world is what a webhook is given.
type world struct {
	set        *policy.Set
	waiting    error
	namespaces map[string]*unstructured.Unstructured // that are known
	fresh      map[string]*unstructured.Unstructured // that have to be read
	reading    error
	read       []string
}

func (w *world) Set() *policy.Set                                 { return w.set }
func (w *world) Namespace(name string) *unstructured.Unstructured { return w.namespaces[name] }

func parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	obj := &unstructured.Unstructured{}
	if err == nil {
		err = obj.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return obj
}

func newWorld(t testing.TB, manifests ...string) *world {
	t.Helper()
	var in policy.Inputs
	for _, text := range append([]string{says, referential, endless}, manifests...) {
		obj := parse(t, text)
		switch obj.GetKind() {
		case "ConstraintTemplate":
			in.Templates = append(in.Templates, obj)
		case "ExpansionTemplate":
			in.ExpansionTemplates = append(in.ExpansionTemplates, obj)
		case "Config":
			in.Configs = append(in.Configs, obj)
		default:
			in.Constraints = append(in.Constraints, obj)
		}
	}
	set := policy.Compile(context.Background(), in, nil)
	if len(set.Rejections()) > 0 {
		t.Fatal(set.Rejections())
	}
	return &world{set: set, namespaces: map[string]*unstructured.Unstructured{"shop": namespaceNamed(t, "shop")}}
}

func namespaceNamed(t testing.TB, name string) *unstructured.Unstructured {
	return parse(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+", labels: {team: "+name+"}}}")
}

func (w *world) webhook() *Webhook {
	return New(Config{
		Policies: func() (Policies, error) {
			if w.waiting != nil {
				return nil, w.waiting
			}
			return w, nil
		},
		ReadNamespace: func(_ context.Context, name string) (*unstructured.Unstructured, error) {
			w.read = append(w.read, name)
			switch {
			case w.reading != nil:
				return nil, w.reading
			case w.fresh[name] == nil:
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, name)
			}
			return w.fresh[name], nil
		},
		Exempt: []string{"policy-system", "kube-*"},
	})
}

const (
	pod       = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop","labels":{"a":"b"}}}`
	podKind   = `"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},`
	createPod = podKind + `"operation":"CREATE","name":"p","namespace":"shop","object":` + pod
)

// review is an AdmissionReview with a request of these fields.
func review(fields string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","userInfo":{"username":"alice"},"dryRun":false,` + fields + `}}`
}

// post posts a body and returns the code and the answer.
func post(t testing.TB, handler http.Handler, query, body string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, Path+query, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	out := httptest.NewRecorder()
	handler.ServeHTTP(out, r)
	return out.Code, out.Body.String()
}

// answer is a short form of an answer: whether it is allowed, the message of a denial and
// warnings; or code and message of a failure.
func answer(t testing.TB, w *Webhook, query, body string) string {
	t.Helper()
	code, data := post(t, w.Handler(), query, body)
	if code != http.StatusOK {
		var status metav1.Status
		if err := json.Unmarshal([]byte(data), &status); err != nil || status.Kind != "Status" || int(status.Code) != code {
			t.Fatalf("%d: %s: %v", code, data, err)
		}
		return fmt.Sprintf("%d %s", code, status.Message)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(data), &review); err != nil {
		t.Fatal(err)
	}
	if review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview" || review.Response == nil || review.Response.UID != "u1" || review.Request != nil {
		t.Fatalf("answer: %s", data)
	}
	text := fmt.Sprint(review.Response.Allowed)
	if result := review.Response.Result; result != nil {
		if review.Response.Allowed || result.Code != http.StatusForbidden || result.Reason != metav1.StatusReasonForbidden {
			t.Errorf("result: %+v", result)
		}
		text += " " + result.Message
	}
	for _, warning := range review.Response.Warnings {
		text += " warning: " + warning
	}
	return text
}

// TestActions is what is done about violations and errors, by the actions of constraints.
func TestActions(t *testing.T) {
	scoped := func(name, actions string) string {
		return constraint("Says", name, "parameters: {field: name}, enforcementAction: scoped, scopedEnforcementActions: ["+actions+"]")
	}
	for _, test := range []struct {
		name      string
		manifests []string
		want      string
	}{
		{"no constraints", nil, "true"},
		{"deny", []string{constraint("Says", "c", "parameters: {field: name}")}, "false [c] name is p"},
		{"warn", []string{constraint("Says", "c", "parameters: {field: name}, enforcementAction: warn")}, "true warning: [c] name is p"},
		{"dryrun", []string{constraint("Says", "c", "parameters: {field: name}, enforcementAction: dryrun")}, "true"},
		{"unknown", []string{constraint("Says", "c", "parameters: {field: name}, enforcementAction: shout")}, "true"},
		{"all", []string{
			constraint("Says", "b", "parameters: {field: name}"), constraint("Says", "a", "parameters: {field: operation}"),
			constraint("Says", "w", "parameters: {field: name}, enforcementAction: warn"), constraint("Says", "d", "parameters: {field: name}, enforcementAction: dryrun"),
		}, "false [a] operation is CREATE\n[b] name is p warning: [w] name is p"},
		{"does not match", []string{constraint("Says", "c", "parameters: {field: name}, match: {kinds: [{apiGroups: [''], kinds: [Service]}]}")}, "true"},
		{"scoped to the webhook", []string{scoped("c", "{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}")}, "false [c] name is p"},
		{"scoped to all", []string{scoped("c", "{action: warn, enforcementPoints: [{name: '*'}]}")}, "true warning: [c] name is p"},
		{"scoped to two actions", []string{scoped("c", "{action: warn, enforcementPoints: [{name: '*'}]}, {action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}")}, "false [c] name is p warning: [c] name is p"},
		{"scoped to the audit", []string{scoped("c", "{action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}")}, "true"},
		{"error of deny", []string{constraint("Says", "c", "parameters: {broken: true}")}, "false [c] the constraint could not be evaluated: "},
		{"error of warn", []string{constraint("Says", "c", "parameters: {broken: true}, enforcementAction: warn")}, "true warning: [c] the constraint could not be evaluated: "},
		{"error of dryrun", []string{constraint("Says", "c", "parameters: {broken: true}, enforcementAction: dryrun")}, "true"},
		{"deferred deny", []string{constraint("Referential", "c", "")}, "503 constraints that deny cannot be evaluated yet: [c] "},
		{"deferred warn", []string{constraint("Referential", "c", "enforcementAction: warn")}, "true warning: [c] "},
		{"deferred dryrun", []string{constraint("Referential", "c", "enforcementAction: dryrun")}, "true"},
		{"deferred and denied", []string{constraint("Referential", "c", ""), constraint("Says", "d", "parameters: {field: name}")}, "false [d] name is p"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := answer(t, newWorld(t, test.manifests...).webhook(), "?timeout=10s", review(createPod))
			// What is wrong with a program is said in its own words.
			if got != test.want && (!strings.HasSuffix(test.want, " ") || !strings.HasPrefix(got, test.want)) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestRequests are what constraints see of the requests of each operation.
func TestRequests(t *testing.T) {
	exec := `"kind":{"group":"","version":"v1","kind":"PodExecOptions"},"resource":{"group":"","version":"v1","resource":"pods"},"subResource":"exec",` +
		`"requestKind":{"group":"","version":"v1","kind":"PodExecOptions"},"requestResource":{"group":"","version":"v1","resource":"pods"},"requestSubResource":"exec",` +
		`"operation":"CONNECT","name":"p","namespace":"shop","object":{"kind":"PodExecOptions","apiVersion":"v1","container":"c","command":["sh"]},"oldObject":null,"options":null`
	scale := `"kind":{"group":"autoscaling","version":"v1","kind":"Scale"},"resource":{"group":"apps","version":"v1","resource":"deployments"},"subResource":"scale",` +
		`"operation":"UPDATE","name":"d","namespace":"shop","object":{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"d","namespace":"shop"}},"oldObject":{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"d","namespace":"shop"}}`
	remove := podKind + `"operation":"DELETE","name":"p","namespace":"shop","object":null,"oldObject":` + pod
	namespace := `"kind":{"group":"","version":"v1","kind":"Namespace"},"resource":{"group":"","version":"v1","resource":"namespaces"},` +
		`"operation":"CREATE","name":"shop","namespace":"shop","object":{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`
	nameless := strings.NewReplacer(`"name":"p"`, `"generateName":"p-"`, `"name":"p",`, "").Replace(createPod)
	for _, test := range []struct{ name, fields, match, field, want string }{
		{"user", createPod, "", "userInfo", `false [c] userInfo is {"username": "alice"}`},
		{"kind", createPod, "", "kind", `false [c] kind is {"group": "", "kind": "Pod", "version": "v1"}`},
		{"create has no old object", createPod, "", "oldObject", "false [c] oldObject is null"},
		{"name to be made", nameless, "", "name", "true"},
		{"name to be made, namespace", nameless, "", "namespace", "false [c] namespace is shop"},
		{"delete", remove, "", "operation", "false [c] operation is DELETE"},
		{"delete, the object", remove, "", "object", `false [c] object is {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}, "name": "p", "namespace": "shop"}}`},
		{"delete, by label", remove, "labelSelector: {matchLabels: {a: b}}", "name", "false [c] name is p"},
		{"connect", exec, "", "subResource", "false [c] subResource is exec"},
		{"connect, name", exec, "", "name", "false [c] name is p"},
		{"connect, kind", exec, "kinds: [{apiGroups: [''], kinds: [PodExecOptions]}]", "kind", `false [c] kind is {"group": "", "kind": "PodExecOptions", "version": "v1"}`},
		{"connect, namespaces", exec, "namespaces: [shop]", "namespace", "false [c] namespace is shop"},
		{"connect, excludedNamespaces", exec, "excludedNamespaces: [shop]", "namespace", "true"},
		{"connect, namespaceSelector", exec, "namespaceSelector: {matchLabels: {team: shop}}", "namespace", "false [c] namespace is shop"},
		{"connect, scope", exec, "scope: Cluster", "namespace", "false [c] namespace is shop"}, // as Gatekeeper: the options are in no namespace
		{"connect without options", strings.Replace(exec, `{"kind":"PodExecOptions","apiVersion":"v1","container":"c","command":["sh"]}`, "null", 1), "", "object", `false [c] object is {"apiVersion": "v1", "kind": "PodExecOptions"}`},
		{"scale", scale, "", "resource", `false [c] resource is {"group": "apps", "resource": "deployments", "version": "v1"}`},
		{"scale, kind", scale, "kinds: [{apiGroups: [autoscaling], kinds: [Scale]}]", "requestKind", `false [c] requestKind is {"group": "autoscaling", "kind": "Scale", "version": "v1"}`},
		{"namespace", namespace, "", "name", "false [c] name is shop"},
		{"namespace is in none", namespace, "", "namespace", "true"},
		{"namespace, scope", namespace, "scope: Namespaced", "name", "true"},
		{"dry run", strings.Replace(review(createPod), `"dryRun":false`, `"dryRun":true`, 1), "", "dryRun", "false [c] dryRun is true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, constraint("Says", "c", "parameters: {field: "+test.field+"}, match: {"+test.match+"}"))
			body := test.fields
			if !strings.HasPrefix(body, "{") {
				body = review(body)
			}
			if got := answer(t, w.webhook(), "", body); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestExemptions admit what is in some namespaces.
func TestExemptions(t *testing.T) {
	config := "apiVersion: config.gatekeeper.sh/v1alpha1\nkind: Config\nmetadata: {name: config, namespace: gatekeeper-system}\nspec: {match: [{excludedNamespaces: [%s], processes: [%s]}]}\n"
	in := func(namespace string) string { return strings.ReplaceAll(createPod, "shop", namespace) }
	exec := `"kind":{"group":"","version":"v1","kind":"PodExecOptions"},"resource":{"group":"","version":"v1","resource":"pods"},"subResource":"exec","operation":"CONNECT","name":"p","namespace":"shop","object":{"kind":"PodExecOptions","apiVersion":"v1"}`
	namespace := func(name string) string {
		return `"kind":{"group":"","version":"v1","kind":"Namespace"},"resource":{"group":"","version":"v1","resource":"namespaces"},"operation":"CREATE","name":"` + name + `","namespace":"` + name + `","object":{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `"}}`
	}
	const denied = "false [c] operation is CREATE"
	for _, test := range []struct{ name, config, fields, want string }{
		{"none", "", createPod, denied},
		{"own namespace", "", in("policy-system"), "true"},
		{"by flag", "", in("kube-public"), "true"},
		{"by flag, not quite", "", in("not-kube-x"), denied},
		{"the Namespace itself", "", namespace("kube-new"), "true"},
		{"another Namespace", "", namespace("new"), denied},
		{"Config, webhook", fmt.Sprintf(config, "shop", "webhook"), createPod, "true"},
		{"Config, all", fmt.Sprintf(config, "'sh*'", "'*'"), createPod, "true"},
		{"Config, audit", fmt.Sprintf(config, "shop", "audit"), createPod, denied},
		{"Config, elsewhere", fmt.Sprintf(config, "shop", "webhook"), in("other"), denied},
		{"Config, connections", fmt.Sprintf(config, "shop", "webhook"), exec, "true"},
		{"Config, Namespace", fmt.Sprintf(config, "shop", "webhook"), namespace("shop"), "true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			manifests := []string{constraint("Says", "c", "parameters: {field: operation}")}
			if test.config != "" {
				manifests = append(manifests, test.config)
			}
			if got := answer(t, newWorld(t, manifests...).webhook(), "", review(test.fields)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestNamespaces are read if they are not known, because they are new.
func TestNamespaces(t *testing.T) {
	w := newWorld(t, constraint("Says", "c", "parameters: {field: name}, match: {namespaceSelector: {matchLabels: {team: new}}}"))
	w.fresh = map[string]*unstructured.Unstructured{"new": namespaceNamed(t, "new")}
	in := func(namespace string) string { return review(strings.ReplaceAll(createPod, "shop", namespace)) }
	for namespace, want := range map[string]string{
		"shop":   "true",
		"new":    "false [c] name is p",
		"absent": "false [c] the constraint could not be evaluated: match: namespace absent: the Namespace of the object is not known, so namespaceSelector cannot be evaluated",
	} {
		if got := answer(t, w.webhook(), "", in(namespace)); got != want {
			t.Errorf("%s: got %s, want %s", namespace, got, want)
		}
	}
	w.reading = errors.New("connection refused")
	if got, want := answer(t, w.webhook(), "", in("new")), "503 the Namespace new cannot be read: connection refused"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.read = nil
	if got := answer(t, w.webhook(), "", in("shop")); got != "true" || len(w.read) > 0 {
		t.Errorf("%s, read %v", got, w.read)
	}
}

// TestExpansion judges what ExpansionTemplates make, as requests of the same operation.
func TestExpansion(t *testing.T) {
	deployment := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","namespace":"shop"},"spec":{"template":{"metadata":{"labels":{"a":"b"}},"spec":{}}}}`
	kind := `"kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1","resource":"deployments"},"name":"d","namespace":"shop",`
	w := newWorld(t, expansion, constraint("Says", "c", "parameters: {field: operation}, match: {kinds: [{apiGroups: [''], kinds: [Pod]}]}"))
	for fields, want := range map[string]string{
		`"operation":"CREATE","object":` + deployment:                                "false [c] [Implied by pods] operation is CREATE",
		`"operation":"UPDATE","object":` + deployment + `,"oldObject":` + deployment: "false [c] [Implied by pods] operation is UPDATE",
		`"operation":"DELETE","object":null,"oldObject":` + deployment:               "true", // what goes makes no Pods
	} {
		if got := answer(t, w.webhook(), "", review(kind+fields)); got != want {
			t.Errorf("%.30s: got %s, want %s", fields, got, want)
		}
	}
}

// TestFailures are answered with a status, so that the failurePolicy decides.
func TestFailures(t *testing.T) {
	for _, test := range []struct{ name, query, body, want string }{
		{"empty", "", "", "400 the body is no AdmissionReview: unexpected end of JSON input"},
		{"no JSON", "", "apiVersion: admission.k8s.io/v1", "400 the body is no AdmissionReview: "},
		{"another object", "", pod, `400 the body is a "Pod" of "v1"; it has to be an AdmissionReview of admission.k8s.io/v1`},
		{"another version", "", strings.Replace(review(createPod), "k8s.io/v1", "k8s.io/v1beta1", 1), `400 the body is a "AdmissionReview" of "admission.k8s.io/v1beta1"`},
		{"no request", "", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, "400 the AdmissionReview has no request"},
		{"no uid", "", strings.Replace(review(createPod), `"u1"`, `""`, 1), "400 the request has no uid"},
		{"no kind", "", review(`"operation":"CREATE"`), "400 the request has no kind, or no resource"},
		{"no object", "", review(podKind + `"operation":"CREATE"`), "400 request.object is missing, and the operation is CREATE"},
		{"no old object", "", review(podKind + `"operation":"DELETE"`), "400 request.oldObject is missing, and the operation is DELETE"},
		{"no operation", "", review(podKind + `"object":` + pod), `400 request.operation is ""; it is CREATE, UPDATE, DELETE or CONNECT`},
		{"object is a list", "", review(podKind + `"operation":"CREATE","object":[1]`), "400 request.object is not an object: "},
		{"too large", "", review(createPod + `,"options":{"a":"` + strings.Repeat("x", maxRequestBytes) + `"}`), "413 Request entity too large: limit is 3145728"},
		{"timeout of nonsense", "?timeout=soon", review(createPod), `400 the query parameter timeout is "soon"`},
		{"timeout of nothing", "?timeout=0s", review(createPod), `400 the query parameter timeout is "0s"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, constraint("Says", "c", "parameters: {field: name}"))
			if got := answer(t, w.webhook(), test.query, test.body); !strings.HasPrefix(got, test.want) {
				if test.name == "too large" && strings.HasPrefix(got, "413 ") {
					return
				}
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	w := newWorld(t, constraint("Says", "c", "parameters: {field: name}"))
	w.waiting = errors.New("Namespaces are being listed")
	if got, want := answer(t, w.webhook(), "", review(createPod)), "503 the policies are not loaded yet: Namespaces are being listed"; got != want || w.webhook().Ready() == nil {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := answer(t, w.webhook(), "", review(strings.ReplaceAll(createPod, "shop", "policy-system"))); got != "true" {
		t.Errorf("an exempt namespace waits for policies: %s", got)
	}
	w.waiting = nil
	if err := w.webhook().Ready(); err != nil {
		t.Error(err)
	}
	// As large as two objects may be together.
	large := strings.Replace(pod, `"a":"b"`, `"a":"`+strings.Repeat("x", 2<<20)+`"`, 1)
	if got := answer(t, w.webhook(), "", review(podKind+`"operation":"UPDATE","name":"p","namespace":"shop","object":`+large+`,"oldObject":`+large)); got != "false [c] name is p" {
		t.Errorf("4 MiB: %.300s", got)
	}
}

// TestMethodsAndTypes are those of a webhook.
func TestMethodsAndTypes(t *testing.T) {
	handler := newWorld(t).webhook().Handler()
	for _, test := range []struct {
		method, path, media string
		code                int
	}{
		{http.MethodPost, Path, "application/json", 200},
		{http.MethodGet, Path, "application/json", 405},
		{http.MethodPost, Path, "application/yaml", 415},
		{http.MethodPost, Path, "", 415},
		{http.MethodPost, "/", "application/json", 404},
		{http.MethodGet, "/metrics", "", 404},
	} {
		r := httptest.NewRequest(test.method, test.path, strings.NewReader(review(createPod)))
		r.Header.Set("Content-Type", test.media)
		out := httptest.NewRecorder()
		handler.ServeHTTP(out, r)
		if out.Code != test.code || out.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s as %q: %d %s", test.method, test.path, test.media, out.Code, out.Body)
		}
	}
}

// TestDeadline: what is found in time counts, and nothing else does.
func TestDeadline(t *testing.T) {
	w := newWorld(t, constraint("Endless", "c", ""))
	if got, want := answer(t, w.webhook(), "?timeout=200ms", review(createPod)), "504 "; !strings.HasPrefix(got, want) || !strings.Contains(got, "the 200ms of the request are over; not all of the 1 constraints were evaluated") {
		t.Errorf("got %s", got)
	}
	// The second is evaluated first, and a violation stays one.
	w = newWorld(t, constraint("Endless", "c", ""), strings.Replace(constraint("Says", "c", "parameters: {field: name}"), "Says", "Aaa", 1),
		strings.NewReplacer("says", "aaa", "Says", "Aaa").Replace(says))
	if got, want := answer(t, w.webhook(), "?timeout=1s", review(createPod)), "false [c] name is p"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestBounds of messages.
func TestBounds(t *testing.T) {
	var manifests []string
	for i := range maxLines + 2 {
		manifests = append(manifests, constraint("Says", fmt.Sprintf("c%03d", i), "parameters: {field: object}"))
	}
	large := strings.Replace(createPod, `"a":"b"`, `"a":"`+strings.Repeat("x", 2*maxLineBytes)+`"`, 1)
	got := strings.Split(answer(t, newWorld(t, manifests...).webhook(), "", review(large)), "\n")
	if len(got) != maxLines+1 || got[maxLines] != "and 2 more" || len(got[1]) != maxLineBytes+3 || !strings.HasSuffix(got[1], "...") {
		t.Errorf("%d lines, the last is %q, the second has %d bytes", len(got), got[len(got)-1], len(got[1]))
	}
}

// TestCallers are those who show a certificate.
func TestCallers(t *testing.T) {
	webhook := newWorld(t).webhook()
	for want, answered := range map[string]authenticator.RequestFunc{
		"true": func(*http.Request) (*authenticator.Response, bool, error) { return nil, true, nil },
		"401 a client certificate of --enforcement-client-ca-file is needed":          func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil },
		"401 a client certificate of --enforcement-client-ca-file is needed: expired": func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, errors.New("expired") },
	} {
		webhook.config.Callers = answered
		if got := answer(t, webhook, "", review(createPod)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestDraining closes connections with their next answer.
func TestDraining(t *testing.T) {
	draining := make(chan struct{})
	webhook := newWorld(t).webhook()
	webhook.config.Draining = draining
	for _, want := range []string{"", "close"} {
		r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(review(createPod)))
		r.Header.Set("Content-Type", "application/json")
		out := httptest.NewRecorder()
		webhook.ServeHTTP(out, r)
		if got := out.Header().Get("Connection"); got != want || out.Code != http.StatusOK {
			t.Errorf("%d, Connection: %q, want %q", out.Code, got, want)
		}
		if want == "" {
			close(draining)
		}
	}
}

// TestMetrics counts what is answered, and what is not met.
func TestMetrics(t *testing.T) {
	legacyregistry.Reset()
	w := newWorld(t,
		constraint("Says", "c", "parameters: {field: name}, match: {namespaces: [shop]}"),
		constraint("Says", "d", "parameters: {field: name}, enforcementAction: dryrun"),
		constraint("Says", "w", "parameters: {broken: true}, enforcementAction: warn, match: {namespaces: [other]}"))
	w.namespaces["other"], w.namespaces["third"] = namespaceNamed(t, "other"), namespaceNamed(t, "third")
	for _, namespace := range []string{"shop", "other", "third", "kube-x"} {
		answer(t, w.webhook(), "", review(strings.ReplaceAll(createPod, "shop", namespace)))
	}
	answer(t, w.webhook(), "", "{}")
	want := `
# HELP policy_apiserver_admission_requests_total [ALPHA] Admission requests, by operation and result: allowed, warned, denied, exempt, or failed if the failurePolicy of the webhook had to decide.
# TYPE policy_apiserver_admission_requests_total counter
policy_apiserver_admission_requests_total{operation="CREATE",result="allowed"} 1
policy_apiserver_admission_requests_total{operation="CREATE",result="denied"} 1
policy_apiserver_admission_requests_total{operation="CREATE",result="exempt"} 1
policy_apiserver_admission_requests_total{operation="CREATE",result="warned"} 1
policy_apiserver_admission_requests_total{operation="other",result="failed"} 1
# HELP policy_apiserver_admission_verdicts_total [ALPHA] Constraints that admission requests did not meet, by what is done about it and by result: fail, error or deferred.
# TYPE policy_apiserver_admission_verdicts_total counter
policy_apiserver_admission_verdicts_total{action="deny",result="fail"} 1
policy_apiserver_admission_verdicts_total{action="dryrun",result="fail"} 3
policy_apiserver_admission_verdicts_total{action="warn",result="error"} 1
`
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "policy_apiserver_admission_requests_total", "policy_apiserver_admission_verdicts_total"); err != nil {
		t.Error(err)
	}
}

// TestNewPolicies are enforced at once, and what was known of the old ones is not.
func TestNewPolicies(t *testing.T) {
	w := newWorld(t)
	webhook := w.webhook()
	got := []string{answer(t, webhook, "", review(createPod))}
	w.set = newWorld(t, constraint("Says", "c", "parameters: {field: name}")).set
	got = append(got, answer(t, webhook, "", review(createPod)))
	w.set = newWorld(t).set
	got = append(got, answer(t, webhook, "", review(createPod)))
	if diff := cmp.Diff([]string{"true", "false [c] name is p", "true"}, got); diff != "" {
		t.Error(diff)
	}
}
