package source

import "k8s.io/apimachinery/pkg/runtime/schema"

// ownGroup is the API group that this server serves. It holds what an audit found,
// so auditing it would feed the audit with its own results.
const ownGroup = "policy.example.io"

// Excluded is true for kinds that no source streams: those of this server's own API
// group, and Events, which are a log rather than state and come faster than
// anything else in a cluster.
func Excluded(gk schema.GroupKind) bool { return WhyExcluded(gk) != "" }

// WhyExcluded says why no source streams a kind, "" if it is not excluded.
func WhyExcluded(gk schema.GroupKind) string {
	switch {
	case gk.Group == ownGroup:
		return "what this server serves is not audited"
	case gk.Kind == "Event" && (gk.Group == "" || gk.Group == "events.k8s.io"):
		return "Events are not audited: they are a log, and no state"
	}
	return ""
}
