package audit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// takenTemplate finds objects whose owner label a ConfigMap of another name has.
const takenTemplate = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: needunique}
spec:
  crd: {spec: {names: {kind: NeedUnique}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package unique
      violation[{"msg": msg}] {
        owner := input.review.object.metadata.labels.owner
        other := data.inventory.namespace[ns][_]["ConfigMap"][name]
        other.metadata.labels.owner == owner
        name != input.review.object.metadata.name
        msg := sprintf("%v is the owner of %v/%v", [owner, ns, name])
      }
`

const uniqueConstraint = `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: NeedUnique
metadata: {name: u}
spec: {match: {kinds: [{apiGroups: [""], kinds: [Pod, ConfigMap]}]}}
`

func configMap(namespace, name, labels string) string {
	return object("v1", "ConfigMap", namespace, name, labels)
}

// listsOf returns how often a kind has been listed.
func (f *fakeSource) listsOf(gk schema.GroupKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists[gk]
}

// Objects are judged again when others that their policies read have changed, and only
// then.
func TestReferences(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedUnique", "needunique", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "owner: me"), configMap("shop", "m", "owner: you"), takenTemplate, uniqueConstraint)
	h := newHarness(t, src)
	eventually(h, "summary", v1alpha1.SummaryCurrent, func() v1alpha1.SummaryState { return h.summary("needunique.u").State })
	h.wantFindings("nothing is taken")

	src.apply(t, configMap("shop", "m", "owner: me"))
	taken := "NeedUnique/u Pod shop/p fail: me is the owner of shop/m"
	h.wantFindings("an object that others read has changed", taken)
	src.apply(t, configMap("other", "more", "owner: me"))
	h.wantFindings("a new object",
		"NeedUnique/u ConfigMap other/more fail: me is the owner of shop/m",
		"NeedUnique/u ConfigMap shop/m fail: me is the owner of other/more",
		"NeedUnique/u Pod shop/p fail: me is the owner of other/more")
	src.remove(configMapKind, "other", "more")
	h.wantFindings("an object is gone", taken)

	// What nobody reads is no reason to list anything.
	before := src.listsOf(podKind)
	src.apply(t, strings.Replace(configMap("shop", "m", "owner: me"), "{name:", "{annotations: {a: b}, name:", 1), configMap("shop", "x", "a: b"))
	src.remove(configMapKind, "shop", "x")
	src.apply(t, pod("shop", "q", "owner: me"))
	h.wantFindings("a change that nobody reads", taken, "NeedUnique/u Pod shop/q fail: me is the owner of shop/m")
	src.remove(podKind, "shop", "q")
	h.wantFindings("a change that nobody reads", taken)
	// ConfigMap x had a name, which is read: it may cost one list, or none if it was gone
	// soon enough.
	if lists := src.listsOf(podKind) - before; lists > 1 {
		t.Errorf("Pods were listed %d times", lists)
	}

	last := h.lastRun().Name
	h.restart()
	eventually(h, "a new run", true, func() bool { return h.lastRun().Name != last && h.lastRun().Phase == v1alpha1.RunComplete })
	h.wantFindings("restart", taken)
	for _, kind := range h.lastRun().Kinds {
		if kind.Evaluated > 0 {
			t.Errorf("after a restart %d objects of %s were evaluated although nothing has changed", kind.Evaluated, kind.Kind)
		}
	}

	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedUnique"}, "", "u")
	h.wantFindings("the constraint is gone")
	eventually(h, "nothing is followed", 0, func() int {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.streams[configMapKind])
	})
}

// What is not known of other objects is said, and never looks clean.
func TestReferencesThatCannotBeListed(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedUnique", "needunique", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "owner: me"), configMap("shop", "m", "owner: me"), takenTemplate,
		strings.Replace(uniqueConstraint, "[Pod, ConfigMap]", "[Pod]", 1))
	src.fail(configMapKind, errForbidden)
	h := newHarness(t, src)
	h.wantFindings("not known", "NeedUnique/u Pod shop/p deferred: the policy reads data.inventory, and v1 ConfigMap objects are not known: "+errForbidden.Error())
	eventually(h, "summary", v1alpha1.SummaryDeferred, func() v1alpha1.SummaryState { return h.summary("needunique.u").State })
	src.fail(configMapKind, nil)
	h.wantFindings("known", "NeedUnique/u Pod shop/p fail: me is the owner of shop/m")
	src.fail(configMapKind, errForbidden)
	eventually(h, "problem", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	h.wantFindings("what is known stays in force", "NeedUnique/u Pod shop/p fail: me is the owner of shop/m")
}

// A version that is not the preferred one has a stream of its own.
func TestReferencesInAnotherVersion(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedUnique", "needunique", false)
	src.addKind("example.com", "v2", "Thing", "things", true)
	src.addVersion("example.com", "v1", "Thing", "things", true)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "owner: me"),
		strings.Replace(takenTemplate, `[_]["ConfigMap"]`, `["example.com/v1"]["Thing"]`, 1), uniqueConstraint,
		object("example.com/v2", "Thing", "shop", "t", "owner: me"))
	h := newHarness(t, src)
	h.wantFindings("an object in its old version", "NeedUnique/u Pod shop/p fail: me is the owner of shop/t")
	src.apply(t, object("example.com/v2", "Thing", "shop", "t", "owner: you"))
	h.wantFindings("changed")
	src.removeKind(schema.GroupKind{Group: constraintGroup, Kind: "NeedUnique"})
	eventually(h, "nothing is followed", 0, func() int {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.streams[schema.GroupKind{Group: "example.com", Kind: "Thing"}])
	})
}

// Changes are collected, so that a stream of them does not have everything judged all
// the time.
func TestReferencesAreCollected(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedUnique", "needunique", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "owner: o49"), takenTemplate,
		strings.Replace(uniqueConstraint, "[Pod, ConfigMap]", "[Pod]", 1))
	h := newHarness(t, src)
	h.waitLoaded()
	before := src.listsOf(podKind)
	for i := range 50 {
		src.apply(t, configMap("shop", "m", fmt.Sprintf("owner: o%d", i)))
		time.Sleep(2 * time.Millisecond)
	}
	h.wantFindings("the last of many changes", "NeedUnique/u Pod shop/p fail: o49 is the owner of shop/m")
	if lists := src.listsOf(podKind) - before; lists > 5 {
		t.Errorf("50 changes in a row had Pods listed %d times", lists)
	}
}

// Namespaces that Gatekeeper's Config excludes are not audited.
func TestConfig(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedLabel", "needlabel", false)
	src.addKind(configGroup, "v1alpha1", "Config", "configs", true)
	src.addKind(syncSetGroup, "v1alpha1", "SyncSet", "syncsets", false)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "a: b"), pod("kube-system", "q", "a: b"),
		template("NeedLabel", "v1"), constraint("NeedLabel", "c", "Pod", "owner", ""))
	h := newHarness(t, src)
	all := []string{"NeedLabel/c Pod kube-system/q fail: v1: label owner is missing", "NeedLabel/c Pod shop/p fail: v1: label owner is missing"}
	h.wantFindings("everything", all...)
	src.apply(t, "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: [{processes: ['*'], excludedNamespaces: ['kube-*']}]}}")
	h.wantFindings("without kube-system", all[1])
	src.apply(t, "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: [{processes: [nothing], excludedNamespaces: ['kube-*']}]}}")
	h.wantFindings("a mistake", all...)
	eventually(h, "rejection", v1alpha1.SummaryRejected, func() v1alpha1.SummaryState { return h.summary("config.config").State })
	src.remove(configKind, "gatekeeper-system", "config")
	h.wantFindings("no Config", all...)
}
