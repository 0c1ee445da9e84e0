package main

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// corpus makes the findings: the same ones each time.
type corpus struct {
	objects, namespaces, constraints int
}

// What selectors select by, and how many values it has: one in a hundred findings has
// the same owner, one in ten thousand the same resource name.
const (
	owners    = 100
	resources = 10_000
)

func (c corpus) namespace(i int) string {
	return fmt.Sprintf("team-%04d", i/((c.objects+c.namespaces-1)/c.namespaces))
}

// changing is how many findings, from the first on, the writer changes.
func (c corpus) changing() int { return min(c.objects, 1000) }

// finding returns the i-th finding, in the order of namespaces.
func (c corpus) finding(i int) *v1alpha1.AuditResult {
	created := metav1.NewTime(time.Unix(1_760_000_000+int64(i%86_400), 0))
	namespace := c.namespace(i)
	constraint := v1alpha1.ConstraintReference{
		Engine: "Gatekeeper", Kind: "K8sRequiredLabels", Name: fmt.Sprintf("constraint-%03d", i%c.constraints),
		UID: types.UID(fmt.Sprintf("5f0c2b1e-7c1d-4d8e-9f00-%012d", i%c.constraints)), Generation: 1,
	}
	resource := v1alpha1.ResourceReference{
		APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("workload-%05d", i%resources),
		UID: types.UID(fmt.Sprintf("9d3c1a52-52c7-4d0e-8f11-%012d", i)), ResourceVersion: fmt.Sprint(100_000 + i), Generation: 1,
	}
	return &v1alpha1.AuditResult{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "AuditResult"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("finding-%07d", i), UID: v1alpha1.ResultUID(constraint, resource), CreationTimestamp: created,
			Labels: map[string]string{
				v1alpha1.LabelConstraintKind: constraint.Kind, v1alpha1.LabelConstraintName: constraint.Name, v1alpha1.LabelResourceKind: resource.Kind,
				"owner": owner(i), "resource": resource.Name,
			},
		},
		Finding: v1alpha1.Finding{
			Constraint: constraint, Resource: resource,
			Owner:             &v1alpha1.OwnerReference{Kind: "Deployment", Name: owner(i)},
			LastWriter:        &v1alpha1.LastWriter{Manager: "kube-controller-manager", Operation: "Update", Time: &created},
			EnforcementAction: "deny", Result: v1alpha1.ResultFail,
			Violations: []v1alpha1.Violation{{
				Message: `you must provide labels: {"owner", "cost-center"}`,
				Details: &runtime.RawExtension{Raw: []byte(`{"missing_labels":["owner","cost-center"]}`)},
			}},
			RunID: "run-20261001-000000", FirstObserved: created, LastChanged: created,
		},
	}
}

func owner(i int) string { return fmt.Sprintf("owner-%02d", i%owners) }

// changed marks a finding with the time of its change, which watches look for.
const changed = "changed at "

func changedMessage(at time.Time) string { return fmt.Sprintf("%s%d.", changed, at.UnixNano()) }

// peerObject returns the finding as a custom resource, as etcd has it.
func (c corpus) peerObject(i int) ([]byte, error) {
	finding := c.finding(i)
	finding.APIVersion = peerGroup + "/v1alpha1"
	finding.Generation = 1
	return json.Marshal(finding)
}
