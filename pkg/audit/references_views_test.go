package audit

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

// needOther makes of the policy NeedUnique one that reads another field.
var needOther = strings.NewReplacer("needunique", "needother", "NeedUnique", "NeedOther", ".labels.owner", ".labels.team")

// What policies read of the objects of a kind may become more and less.
func TestReferencesReadOtherFields(t *testing.T) {
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedUnique", "needunique", false)
	src.addKind(constraintGroup, "v1beta1", "NeedOther", "needother", false)
	src.addKind(configGroup, "v1alpha1", "Config", "configs", true)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "owner: me, team: t"), configMap("shop", "m", "owner: me, team: t"), takenTemplate,
		strings.Replace(uniqueConstraint, "[Pod, ConfigMap]", "[Pod]", 1))
	h := newHarness(t, src)
	taken := "NeedUnique/u Pod shop/p fail: me is the owner of shop/m"
	h.wantFindings("one program", taken)

	src.apply(t, needOther.Replace(takenTemplate), strings.Replace(needOther.Replace(uniqueConstraint), "[Pod, ConfigMap]", "[Pod]", 1))
	h.wantFindings("a program that reads more", "NeedOther/u Pod shop/p fail: t is the owner of shop/m", taken)

	src.apply(t, "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: [{processes: [sync], excludedNamespaces: [shop]}]}}")
	h.wantFindings("nothing is synced")
	src.remove(configKind, "gatekeeper-system", "config")
	h.wantFindings("all is synced", "NeedOther/u Pod shop/p fail: t is the owner of shop/m", taken)

	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedOther"}, "", "u")
	h.wantFindings("one program again", taken)
	eventually(h, "run", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
}

// Which version of a kind is preferred may change, and policies see objects in the
// version that they name.
func TestReferencesWhenThePreferredVersionChanges(t *testing.T) {
	thing := schema.GroupKind{Group: "example.com", Kind: "Thing"}
	src := newFakeSource()
	src.addKind(constraintGroup, "v1beta1", "NeedUnique", "needunique", false)
	src.addKind("example.com", "v1", "Thing", "things", true)
	src.apply(t, object("v1", "Namespace", "", "shop", "a: b"), pod("shop", "p", "owner: me"),
		strings.Replace(takenTemplate, `[_]["ConfigMap"]`, `["example.com/v1"]["Thing"]`, 1),
		strings.NewReplacer(`apiGroups: [""]`, `apiGroups: ["*"]`, "[Pod, ConfigMap]", "[Pod, Thing]").Replace(uniqueConstraint),
		object("example.com/v1", "Thing", "shop", "t", "owner: me"))
	h := newHarness(t, src)
	taken := "NeedUnique/u Pod shop/p fail: me is the owner of shop/t"
	h.wantFindings("preferred", taken)

	src.addVersion("example.com", "v1", "Thing", "things", true)
	src.addKind("example.com", "v2", "Thing", "things", true)
	eventually(h, "the version that is read and the one that is audited", []string{"example.com/v1", "example.com/v2"}, func() []string { return src.versionsOf(thing) })
	src.apply(t, object("example.com/v2", "Thing", "shop", "t", "owner: you"))
	h.wantFindings("not preferred any more, and changed")
	src.apply(t, object("example.com/v2", "Thing", "shop", "t", "owner: me"))
	h.wantFindings("changed again", taken)
	src.failGroup("example.com", errForbidden)
	eventually(h, "problem", v1alpha1.RunPartial, func() v1alpha1.RunPhase { return h.lastRun().Phase })
	h.wantFindings("the group does not answer", taken)
	src.failGroup("example.com", nil)
	src.mu.Lock()
	src.others = nil
	src.mu.Unlock()
	src.addKind("example.com", "v1", "Thing", "things", true)
	src.apply(t, object("example.com/v1", "Thing", "shop", "t", "owner: you"))
	h.wantFindings("preferred once more, and changed")
}
