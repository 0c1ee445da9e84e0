package example

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

const (
	templateGroup   = "templates.gatekeeper.sh"
	constraintGroup = "constraints.gatekeeper.sh"
)

// findings are all that is wrong in the example: constraint, action and object,
// and the messages of the violations.
var findings = map[string][]string{
	"ShopAllowedRegistries/images-from-our-registries deny Pod payments/import-29412360-c6d5n": {
		"container import: image docker.io/library/busybox:1.37 is not from an allowed registry",
	},
	"ShopContainerLimits/memory-is-limited dryrun Deployment payments/ledger": {
		"container ledger has no memory limit",
	},
	"ShopContainerLimits/memory-is-limited dryrun Pod payments/ledger-5f6b8d7c9-h2v8w": {
		"container ledger has no memory limit",
	},
	"ShopImageTags/images-are-pinned deny Pod storefront/cart-7b4d9c6f8-m4q9z": {
		"container cart: tag latest can change under the Pod",
	},
	"ShopIngressTLS/ingresses-have-tls deny Ingress storefront/preview": {
		"host preview.shop.example has no TLS",
	},
	"ShopMinReplicas/customers-are-served deny Deployment storefront/cart": {
		"replicas is 1; it must be at least 2",
	},
	"ShopNamespaceOwner/namespaces-are-paid-for dryrun Namespace monitoring": {
		`label cost-center is ""; it must match ^[0-9]{4}$`,
	},
	"ShopNoPrivilege/no-privilege deny Pod monitoring/node-agent-r8t4b": {
		"container node-agent is privileged",
		"hostNetwork is set",
	},
	"ShopProbes/servers-have-probes warn Deployment storefront/cart": {
		"container cart has no readinessProbe",
	},
	"ShopRBACWildcards/roles-name-their-rights deny ClusterRole deploy-bot": {
		"rules[0].apiGroups has a wildcard",
		"rules[0].resources has a wildcard",
	},
	"ShopRBACWildcards/roles-name-their-rights deny Role payments/on-call": {
		"rules[0].verbs has a wildcard",
	},
	"ShopRequiredLabels/services-have-owners dryrun Service storefront/cart": {
		"labels are missing: team",
	},
	"ShopRequiredLabels/workloads-have-owners warn Deployment storefront/cart": {
		"labels are missing: team",
	},
}

func TestFindings(t *testing.T) {
	objects := read(t, "../../artifacts/example")
	var inputs policy.Inputs
	namespaces := map[string]*unstructured.Unstructured{}
	for _, obj := range objects {
		switch gvk := obj.GroupVersionKind(); {
		case gvk.Group == templateGroup:
			inputs.Templates = append(inputs.Templates, obj)
		case gvk.Group == constraintGroup:
			inputs.Constraints = append(inputs.Constraints, obj)
		case gvk.Group == "" && gvk.Kind == "Namespace":
			namespaces[obj.GetName()] = obj
		}
	}
	set := policy.Compile(t.Context(), inputs, nil)
	for _, r := range set.Rejections() {
		t.Errorf("%s %s is rejected: %s", r.ID.Kind, r.ID.Name, r.Message)
	}

	got := map[string][]string{}
	passed, failed := map[string]bool{}, map[string]bool{}
	for _, obj := range objects {
		kind := policy.Kind{GroupVersionKind: obj.GroupVersionKind(), Namespaced: obj.GetNamespace() != ""}
		reviewed := policy.NewObject(kind, obj, namespaces[obj.GetNamespace()])
		constraints := set.ForKind(kind)
		for _, v := range policy.Review(t.Context(), reviewed, constraints) {
			constraint := v.Constraint.ID.Kind + "/" + v.Constraint.ID.Name
			switch v.Outcome {
			case policy.NotMatched:
			case policy.Pass:
				passed[constraint] = true
			case policy.Fail:
				failed[constraint] = true
				got[fmt.Sprintf("%s %s %s", constraint, v.Constraint.EnforcementAction, name(obj))] = messages(v)
			default:
				t.Errorf("%s cannot judge %s: %s", constraint, name(obj), v.Message)
			}
		}
	}
	if diff := cmp.Diff(findings, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}

	// Each policy shows both of its sides.
	if len(inputs.Templates) != 10 {
		t.Errorf("%d templates, but the documentation speaks of ten policies", len(inputs.Templates))
	}
	for _, c := range set.Constraints() {
		constraint := c.ID.Kind + "/" + c.ID.Name
		if !passed[constraint] || !failed[constraint] {
			t.Errorf("%s: passed by an object %v, failed by one %v; want both", constraint, passed[constraint], failed[constraint])
		}
	}
}

// read returns all objects of a directory.
func read(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	src, err := directory.New(path, directory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	inventory, err := src.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range inventory.Problems {
		t.Errorf("problem with %s: %s", p.Subject, p.Message)
	}
	var objects []*unstructured.Unstructured
	for _, kind := range inventory.Kinds {
		ctx, cancel := context.WithCancel(t.Context())
		l := &lister{done: cancel}
		src.Stream(ctx, kind, l)
		if l.err != nil {
			t.Errorf("list %s: %v", kind.Kind, l.err)
		}
		objects = append(objects, l.objects...)
	}
	return objects
}

// lister takes the first list of a stream and ends it.
type lister struct {
	objects []*unstructured.Unstructured
	err     error
	done    context.CancelFunc
}

var _ source.Handler = (*lister)(nil)

func (l *lister) ListStarted()                          { l.objects = nil }
func (l *lister) Upsert(obj *unstructured.Unstructured) { l.objects = append(l.objects, obj) }
func (l *lister) Delete(source.ObjectKey)               {}
func (l *lister) Listed(string)                         { l.done() }
func (l *lister) Failed(err error)                      { l.err = err; l.done() }

func name(obj *unstructured.Unstructured) string {
	return obj.GetKind() + " " + strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/")
}

func messages(v policy.Verdict) []string {
	var out []string
	for _, violation := range v.Violations {
		out = append(out, violation.Message)
	}
	slices.Sort(out)
	return out
}
