package audit

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestPolicies follows the plans: kinds, Namespaces and what cannot be listed.
func TestPolicies(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.addKind("constraints.gatekeeper.sh", "v1beta1", "Other", "other", false)
	other := schema.GroupKind{Group: "constraints.gatekeeper.sh", Kind: "Other"}
	src.fail(other, errForbidden)
	h := newHarness(t, src)
	h.waitLoaded()
	p, err := h.a.Policies()
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Set().Constraints(); len(got) != 1 || got[0].ID.Name != "owner" {
		t.Errorf("constraints: %v", got)
	}
	if got := p.Missing(); len(got) != 1 || got[0] != "Other" {
		t.Errorf("missing: %v", got)
	}
	if ns := p.Namespace("shop"); ns == nil || ns.GetName() != "shop" || p.Namespace("absent") != nil {
		t.Errorf("Namespace shop: %v", ns)
	}
	if kind, ok, err := p.Kind(podKind); !ok || err != nil || kind.Resource != "pods" || !kind.Namespaced || kind.Version != "v1" {
		t.Errorf("Pod: %v %v %v", kind, ok, err)
	}
	absent := schema.GroupKind{Group: "shop.example", Kind: "Absent"}
	if _, ok, err := p.Kind(absent); ok || err != nil {
		t.Errorf("Absent: %v %v", ok, err)
	}
	src.failGroup("shop.example", errForbidden)
	eventually(h, "discovery that fails", true, func() bool {
		p, err := h.a.Policies()
		if err != nil {
			t.Fatal(err)
		}
		_, ok, err := p.Kind(absent)
		return !ok && err != nil && strings.Contains(err.Error(), `the API group "shop.example" are not known`)
	})
}

// TestPoliciesAreWaitedFor says for what, and never hands out what is not complete.
func TestPoliciesAreWaitedFor(t *testing.T) {
	src := newFakeSource()
	seed(t, src)
	src.fail(templateKind, errForbidden)
	h := newHarness(t, src)
	eventually(h, "the reason", true, func() bool {
		p, err := h.a.Policies()
		return p == nil && err != nil && strings.Contains(err.Error(), "ConstraintTemplate.templates.gatekeeper.sh objects cannot be listed")
	})
	src.fail(templateKind, nil)
	eventually(h, "the policies", true, func() bool {
		p, err := h.a.Policies()
		return err == nil && len(p.Set().Constraints()) == 1
	})
}
