package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// admissionPolicies by name: what is in their specs besides matchConstraints, a line a
// field.
var admissionPolicies = map[string]string{
	"e2e-team":    `validations: [{expression: "has(object.metadata.labels) && 'team' in object.metadata.labels", message: no team}]`,
	"e2e-message": `validations: [{expression: "size(object.data) > 1", messageExpression: "'data of ' + string(object.metadata.name) + ' in ' + namespaceObject.metadata.name"}]`,
	"e2e-several": `validations: [{expression: "!('a' in object.data)", message: has a}, {expression: "!('b' in object.data)", message: has b}]`,
	"e2e-variables": `variables: [{name: keys, expression: "object.data.map(k, k)"}]
validations: [{expression: "variables.keys.all(k, k.size() == 1)", message: long keys}]`,
	"e2e-condition": `matchConditions: [{name: labelled, expression: "has(object.metadata.labels)"}]
validations: [{expression: "object.metadata.labels.size() > 1", message: few labels}]`,
	"e2e-error": `validations: [{expression: "object.data.absent == 'x'", message: unused}]`,
	"e2e-ignored": `failurePolicy: Ignore
validations: [{expression: "object.data.absent == 'x'", message: unused}]`,
	"e2e-params": `paramKind: {apiVersion: v1, kind: ConfigMap}
validations: [{expression: "params.data.needed in object.data", messageExpression: "'needs ' + params.data.needed"}]`,
}

// TestAdmissionPolicies sends what exists to the kube-apiserver once more, as dry-run
// creates: what it denies is what is found, with the same message. It says one reason
// only, so the policies are there one after the other.
func TestAdmissionPolicies(t *testing.T) {
	objects := map[string]string{
		"one":   `{apiVersion: v1, kind: ConfigMap, metadata: {name: one, namespace: e2e-vap}, data: {a: "1"}}`,
		"two":   `{apiVersion: v1, kind: ConfigMap, metadata: {name: two, namespace: e2e-vap, labels: {team: x}}, data: {a: "1", b: "2"}}`,
		"three": `{apiVersion: v1, kind: ConfigMap, metadata: {name: three, namespace: e2e-vap, labels: {team: x, app: shop}}, data: {long: "1"}}`,
		"limit": `{apiVersion: v1, kind: ConfigMap, metadata: {name: limit, namespace: e2e-vap, labels: {kind: params}}, data: {needed: b, x: "1"}}`,
	}
	manifests := []string{"apiVersion: v1\nkind: Namespace\nmetadata: {name: e2e-vap, labels: {e2e: vap}}\n"}
	for _, object := range objects {
		manifests = append(manifests, object)
	}
	apply(t, manifests...)
	remove(t, "namespace/e2e-vap")
	// Of how many of the objects each policy finds something.
	want := map[string]int{
		"e2e-team": 2, "e2e-message": 2, "e2e-several": 2, "e2e-variables": 2,
		"e2e-condition": 2, "e2e-error": 4, "e2e-ignored": 0, "e2e-params": 3,
	}
	for policy, spec := range admissionPolicies {
		t.Run(policy, func(t *testing.T) {
			param := ""
			if strings.Contains(spec, "paramKind") {
				param = "paramRef: {selector: {matchLabels: {kind: params}}, parameterNotFoundAction: Deny}"
			}
			apply(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  %s
`, policy, strings.ReplaceAll(spec, "\n", "\n  ")), fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s-binding}
spec:
  policyName: %[1]s
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {e2e: vap}}}
  %[2]s
`, policy, param))
			defer kubectl(t, "delete", "validatingadmissionpolicybinding/"+policy+"-binding", "validatingadmissionpolicy/"+policy)
			eventually(t, 60*time.Second, "the same verdicts", func() error {
				s, err := summary(t, policy+"."+policy+"-binding")
				if err != nil {
					return err
				}
				if s.State != v1alpha1.SummaryCurrent || s.EnforcementAction != "deny" || s.Constraint.Engine != "ValidatingAdmissionPolicy" {
					return fmt.Errorf("the summary says %+v", s)
				}
				found, err := findingsOf(policy + "-binding")
				if err != nil {
					return err
				}
				if len(found) != want[policy] {
					return fmt.Errorf("found is %v", found)
				}
				for name, object := range objects {
					denied, err := denial(policy, object)
					if err != nil {
						return err
					}
					if found[name] != denied {
						return fmt.Errorf("of %s the kube-apiserver says %q, found is %q", name, denied, found[name])
					}
				}
				return nil
			})
		})
	}
}

// findingsOf a binding are the first message on each object, without the place.
func findingsOf(binding string) (map[string]string, error) {
	list, err := client.PolicyV1alpha1().AuditResults("e2e-vap").List(context.Background(), metav1.ListOptions{FieldSelector: "constraint.name=" + binding})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range list.Items {
		r := &list.Items[i]
		switch {
		case r.Resource.Name == "kube-root-ca.crt":
		case r.Result == v1alpha1.ResultFail:
			out[r.Resource.Name] = r.Violations[0].Message
		default:
			_, message, _ := strings.Cut(r.Message, "expression: ")
			out[r.Resource.Name] = message
		}
	}
	return out, nil
}

// denial is what the kube-apiserver says about an object by a policy, "" if it lets it
// pass.
func denial(policy, object string) (string, error) {
	_, err := cp.Kubectl(object, "create", "--dry-run=server", "-f", "-")
	if err == nil {
		return "", errors.New("the object could be created, though it is there")
	}
	prefix := fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s-binding' denied request: ", policy, policy)
	_, message, _ := strings.Cut(err.Error(), prefix)
	if _, cause, ok := strings.Cut(message, "resulted in error: "); ok {
		message = cause
	}
	return strings.TrimSpace(message), nil
}
