package audit

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

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

	other := strings.NewReplacer("needunique", "needother", "NeedUnique", "NeedOther", ".labels.owner", ".labels.team")
	src.apply(t, other.Replace(takenTemplate), strings.Replace(other.Replace(uniqueConstraint), "[Pod, ConfigMap]", "[Pod]", 1))
	h.wantFindings("a program that reads more", "NeedOther/u Pod shop/p fail: t is the owner of shop/m", taken)

	src.apply(t, "{apiVersion: config.gatekeeper.sh/v1alpha1, kind: Config, metadata: {name: config, namespace: gatekeeper-system}, spec: {match: [{processes: [sync], excludedNamespaces: [shop]}]}}")
	h.wantFindings("nothing is synced")
	src.remove(configKind, "gatekeeper-system", "config")
	h.wantFindings("all is synced", "NeedOther/u Pod shop/p fail: t is the owner of shop/m", taken)

	src.remove(schema.GroupKind{Group: constraintGroup, Kind: "NeedOther"}, "", "u")
	h.wantFindings("one program again", taken)
	eventually(h, "run", v1alpha1.RunComplete, func() v1alpha1.RunPhase { return h.lastRun().Phase })
}
