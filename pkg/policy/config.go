package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/policy/match"
)

// Gatekeeper's Config and SyncSets.

const (
	configKind  = "Config"
	configName  = "config"
	syncSetKind = "SyncSet"
	// gatekeeperNamespace is where Gatekeeper is installed, and its Config is read from.
	gatekeeperNamespace = "gatekeeper-system"
)

// process is a part of Gatekeeper that a Config can exclude namespaces from.
type process string

const (
	processAudit   process = "audit"
	processSync    process = "sync"
	processWebhook process = "webhook"

	processMutation = "mutation-webhook"
	processAll      = "*"
)

// exclusions are the namespaces that processes leave alone. nil excludes nothing.
type exclusions struct {
	namespaces map[process][]string
}

// patterns of the namespaces that a process leaves alone, sorted.
func (e *exclusions) patterns(p process) []string {
	if e == nil {
		return nil
	}
	return e.namespaces[p]
}

// excludes tells whether a process leaves an object alone. A Namespace counts by its
// name. As in Gatekeeper, the pattern * takes cluster-scoped objects as well.
func (e *exclusions) excludes(p process, obj *unstructured.Unstructured) bool {
	return e.excludesIn(p, obj, obj.GetNamespace())
}

// excludesIn is excludes for an object of a request in a namespace.
func (e *exclusions) excludesIn(p process, obj *unstructured.Unstructured, namespace string) bool {
	patterns := e.patterns(p)
	if len(patterns) == 0 {
		return false
	}
	if obj.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "Namespace"}) {
		namespace = obj.GetName()
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool { return match.Wildcard(pattern, namespace) })
}

// gvkEntry is how Configs and SyncSets name a kind.
type gvkEntry struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// addConfig takes up the Config and the SyncSets. What is wrong with one of them is a
// rejection, and the rest of it holds.
func (s *Set) addConfig(in *Inputs) {
	defer func() {
		slices.SortFunc(s.synced, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
		s.synced = slices.Compact(s.synced)
	}()
	reject := func(obj *unstructured.Unstructured, format string, args ...any) {
		s.rejections = append(s.rejections, Rejection{
			ID:         ConstraintID{Engine: EngineGatekeeper, Kind: obj.GetKind(), Name: obj.GetName()},
			UID:        obj.GetUID(),
			Generation: obj.GetGeneration(),
			Message:    fmt.Sprintf("%s %s: %s", obj.GetKind(), obj.GetName(), fmt.Sprintf(format, args...)),
		})
	}
	sync := func(obj *unstructured.Unstructured, field string, entries []gvkEntry) {
		for i, e := range entries {
			if e.Version == "" || e.Kind == "" {
				reject(obj, "%s[%d] has no version or no kind; give it both, and the group unless it is the core group", field, i)
				continue
			}
			s.synced = append(s.synced, schema.GroupVersionKind(e))
		}
	}
	for _, obj := range in.SyncSets {
		var spec struct {
			GVKs []gvkEntry `json:"gvks"`
		}
		unknown, err := fromSpec(obj, &spec)
		if err != nil {
			reject(obj, "spec: %v", err)
			continue
		}
		if unknown != nil {
			reject(obj, "spec: %v; it has gvks, whose entries have group, version and kind", unknown)
		}
		sync(obj, "spec.gvks", spec.GVKs)
	}
	for _, obj := range in.Configs {
		if obj.GetName() != configName {
			reject(obj, "it has no effect, as in Gatekeeper; the Config that has one is named %s", configName)
		}
	}
	if obj := pickConfig(in.Configs); obj != nil {
		var spec struct {
			Sync struct {
				SyncOnly []gvkEntry `json:"syncOnly"`
			} `json:"sync"`
			Match []struct {
				Processes          []string `json:"processes"`
				ExcludedNamespaces []string `json:"excludedNamespaces"`
			} `json:"match"`
			// These are about Gatekeeper itself.
			Validation map[string]any `json:"validation"`
			Readiness  map[string]any `json:"readiness"`
		}
		unknown, err := fromSpec(obj, &spec)
		if err != nil {
			reject(obj, "spec: %v", err)
			return
		}
		if unknown != nil {
			reject(obj, "spec: %v; it has match, whose entries have processes and excludedNamespaces, and sync.syncOnly, whose entries have group, version and kind", unknown)
		}
		sync(obj, "spec.sync.syncOnly", spec.Sync.SyncOnly)
		e := &exclusions{namespaces: map[process][]string{}}
		for i, entry := range spec.Match {
			for _, name := range entry.Processes {
				switch name {
				case string(processAudit), string(processSync), string(processWebhook):
					e.add(process(name), entry.ExcludedNamespaces)
				case processAll:
					for _, p := range []process{processAudit, processSync, processWebhook} {
						e.add(p, entry.ExcludedNamespaces)
					}
				case processMutation:
				default:
					reject(obj, "spec.match[%d].processes: %q is no process; it is one of audit, sync, webhook, mutation-webhook and *", i, name)
				}
			}
		}
		if len(e.namespaces) > 0 {
			s.exclusions = e
		}
	}
}

func (e *exclusions) add(p process, patterns []string) {
	all := slices.Concat(e.namespaces[p], patterns)
	slices.Sort(all)
	e.namespaces[p] = slices.Compact(all)
}

// fromSpec decodes the spec of an object. unknown says which fields into does not have;
// the others are decoded all the same.
func fromSpec(obj *unstructured.Unstructured, into any) (unknown, err error) {
	content, found, err := unstructured.NestedMap(obj.Object, "spec")
	if err != nil || !found {
		return nil, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, into, true)
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		return errors.Join(strict.Errors()...), nil
	}
	return nil, err
}

// pickConfig returns the Config that counts. Gatekeeper reads the one named config in
// the namespace that it is installed in; where it is not installed, the one there is.
func pickConfig(configs []*unstructured.Unstructured) *unstructured.Unstructured {
	var picked *unstructured.Unstructured
	for _, obj := range configs {
		if obj.GetName() != configName {
			continue
		}
		if picked == nil || configOrder(obj, picked) < 0 {
			picked = obj
		}
	}
	return picked
}

func configOrder(a, b *unstructured.Unstructured) int {
	elsewhere := func(obj *unstructured.Unstructured) int {
		if obj.GetNamespace() == gatekeeperNamespace {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(elsewhere(a), elsewhere(b)), strings.Compare(a.GetNamespace(), b.GetNamespace()))
}
