package v1alpha1

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Label keys that every result carries, so that kubectl's -l works. A value that
// is not a valid label value is left out.
const (
	LabelConstraintKind = "policy.example.io/constraint-kind"
	LabelConstraintName = "policy.example.io/constraint-name"
	LabelResourceKind   = "policy.example.io/resource-kind"
)

// ResultLabels returns the labels of the results of a constraint on objects of a kind,
// and of what counts them.
func ResultLabels(c ConstraintReference, kind string) map[string]string {
	labels := map[string]string{}
	for key, value := range map[string]string{
		LabelConstraintKind: c.Kind,
		LabelConstraintName: c.Name,
		LabelResourceKind:   kind,
	} {
		if len(validation.IsValidLabelValue(value)) == 0 {
			labels[key] = value
		}
	}
	return labels
}

// LabelTime is the label of a change with its time, in TimeLabelLayout and UTC. It is a
// number, so that label selectors with > and < select by it.
const (
	LabelTime       = "policy.example.io/time"
	TimeLabelLayout = "20060102150405"
)

// maxNameLength is the longest name of a Kubernetes object that is a DNS
// subdomain.
const maxNameLength = 253

// ResultName returns the name of the result of a constraint on an object. It
// depends only on the identity of the two (engine, kind and name of the
// constraint; group, kind, namespace and name of the object), is readable first
// and unique by a hash at the end, and is a DNS subdomain of at most 253
// characters.
func ResultName(c ConstraintReference, r ResourceReference) string {
	sum := identitySum(c, r)
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:10]))
	return readableName(maxNameLength-len(hash)-1, c.Name, r.Kind, r.Name) + "." + hash
}

// ResultUID returns the uid of the result of a constraint on an object. It
// depends on what ResultName depends on and on the uid of the object, so a
// re-created object gets a new result.
func ResultUID(c ConstraintReference, r ResourceReference) types.UID {
	sum := identitySum(c, r, string(r.UID))
	return uidOf(sum)
}

// AuditSummaryName returns the name of the summary of a constraint's results on the
// objects of a kind. It depends on nothing else of the two but their identities and on
// the enforcement action, is readable first and unique within a namespace by a hash at
// the end, as ResultName.
func AuditSummaryName(c ConstraintReference, k KindReference, action string) string {
	sum := auditSummarySum(c, k, action)
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:10]))
	return readableName(maxNameLength-len(hash)-1, c.Name, k.Kind) + "." + hash
}

// AuditSummaryUID returns the uid of such a summary in a namespace.
func AuditSummaryUID(namespace string, c ConstraintReference, k KindReference, action string) types.UID {
	return uidOf(auditSummarySum(c, k, action, namespace))
}

func auditSummarySum(c ConstraintReference, k KindReference, action string, more ...string) [sha256.Size]byte {
	return identitySum(c, ResourceReference{APIGroup: k.APIGroup, Kind: k.Kind}, append([]string{"auditsummary", action}, more...)...)
}

// ChangeName returns the name of the change of a type of the result of a constraint on
// an object. It depends on nothing else and reads like the name of the result.
func ChangeName(t ChangeType, c ConstraintReference, r ResourceReference) string {
	sum := identitySum(c, r, string(t))
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:10]))
	return readableName(maxNameLength-len(hash)-1, c.Name, r.Kind, r.Name, string(t)) + "." + hash
}

// ChangeUID returns the uid of the change that ChangeName names.
func ChangeUID(t ChangeType, c ConstraintReference, r ResourceReference) types.UID {
	return uidOf(identitySum(c, r, string(t), "change"))
}

// SummaryName returns the name of the summary of a constraint: its kind in lower
// case and its name, with a hash in place of what would make it too long or no
// DNS subdomain.
func SummaryName(c ConstraintReference) string {
	name := summaryText(c)
	if readable := readableName(maxNameLength, name); readable == name {
		return name
	}
	return SummaryHashedName(c)
}

// SummaryHashedName is SummaryName with a hash behind it in any case: the name of a
// summary whose other name another summary has.
func SummaryHashedName(c ConstraintReference) string {
	sum := identitySum(c, ResourceReference{})
	hash := hex.EncodeToString(sum[:8])
	return readableName(maxNameLength-len(hash)-1, summaryText(c)) + "." + hash
}

// summaryText is what the name of a summary is made of.
func summaryText(c ConstraintReference) string {
	name := strings.ToLower(c.Kind)
	if c.Name != "" {
		name += "." + c.Name
	}
	return name
}

// SummaryUID returns the uid of the summary of a constraint.
func SummaryUID(c ConstraintReference) types.UID {
	return uidOf(identitySum(c, ResourceReference{}, string(c.UID), "summary"))
}

func identitySum(c ConstraintReference, r ResourceReference, more ...string) [sha256.Size]byte {
	parts := append([]string{string(c.Engine), c.Kind, c.Name, r.APIGroup, r.Kind, r.Namespace, r.Name}, more...)
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}

// uidOf shapes a hash as an RFC 9562 version 8 (custom) UUID.
func uidOf(sum [sha256.Size]byte) types.UID {
	b := sum[:16]
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b)
	return types.UID(h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:])
}

// readableName joins parts by dots, in lower case, and turns the result into a
// DNS subdomain of at most limit characters. RBAC names such as system:node are
// no DNS subdomains, so other characters become dashes.
func readableName(limit int, parts ...string) string {
	joined := strings.ToLower(strings.Join(parts, "."))
	labels := strings.Split(joined, ".")
	kept := labels[:0]
	for _, label := range labels {
		label = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
				return r
			}
			return '-'
		}, label)
		if label = strings.Trim(label, "-"); label != "" {
			kept = append(kept, label)
		}
	}
	name := strings.Join(kept, ".")
	if len(name) > limit {
		name = strings.TrimRight(name[:limit], "-.")
	}
	return name
}
