package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"policy.example.io/policy-apiserver/pkg/source"
)

// discover reads discovery and tells whether the inventory differs from the one
// read before.
func (s *Source) discover(ctx context.Context) (inventory *source.Inventory, changed bool, err error) {
	groups, resources, err := discovery.ServerGroupsAndResourcesWithContext(ctx, s.discovery)
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return nil, false, fmt.Errorf("discovery of the cluster's API: %w", err)
	}
	inventory = newInventory(groups, resources, failed)

	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.last == nil || !equalInventories(s.last, inventory)
	s.last = inventory
	return inventory, changed, nil
}

// newInventory picks the kinds to stream from what discovery returned.
func newInventory(groups []*metav1.APIGroup, resources []*metav1.APIResourceList, failed map[schema.GroupVersion]error) *source.Inventory {
	inventory := &source.Inventory{}
	for _, gv := range slices.SortedFunc(maps.Keys(failed), compareGroupVersions) {
		if source.Excluded(schema.GroupKind{Group: gv.Group}) || inventory.FailedGroups[gv.Group] != nil {
			continue
		}
		if inventory.FailedGroups == nil {
			inventory.FailedGroups = map[string]error{}
		}
		inventory.FailedGroups[gv.Group] = fmt.Errorf("discovery of %s: %w", gv, failed[gv])
	}

	byVersion := make(map[string][]metav1.APIResource, len(resources))
	for _, list := range resources {
		byVersion[list.GroupVersion] = list.APIResources
	}
	for _, group := range groups {
		// With one version of a group unknown, the preferred version of its kinds is
		// not known either.
		if inventory.FailedGroups[group.Name] != nil {
			continue
		}
		kinds, others, unstreamed := groupKinds(group, byVersion)
		inventory.Kinds = append(inventory.Kinds, kinds...)
		inventory.OtherVersions = append(inventory.OtherVersions, others...)
		inventory.Unstreamed = append(inventory.Unstreamed, unstreamed...)
	}
	slices.SortFunc(inventory.Unstreamed, func(a, b source.UnstreamedKind) int { return compareKinds(a.Kind, b.Kind) })
	slices.SortFunc(inventory.Kinds, compareKinds)
	slices.SortFunc(inventory.OtherVersions, compareKinds)
	return inventory
}

func compareKinds(a, b source.Kind) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Version, b.Version))
}

// groupKinds returns the kinds of a group in the version that the server prefers,
// or, for a kind that this version does not have, in the first one that does, and the
// kinds in their other versions. unstreamed are those that have objects which cannot be
// streamed.
func groupKinds(group *metav1.APIGroup, byVersion map[string][]metav1.APIResource) (kinds, others []source.Kind, unstreamed []source.UnstreamedKind) {
	versions := []string{group.PreferredVersion.Version}
	for _, v := range group.Versions {
		if v.Version != group.PreferredVersion.Version {
			versions = append(versions, v.Version)
		}
	}
	known := map[string]string{} // version by kind
	for _, version := range versions {
		gv := schema.GroupVersion{Group: group.Name, Version: version}
		for _, resource := range byVersion[gv.String()] {
			gvk := gv.WithKind(resource.Kind)
			kind := source.Kind{GroupVersionKind: gvk, Resource: resource.Name, Namespaced: resource.Namespaced}
			if reason := cmp.Or(source.WhyExcluded(gvk.GroupKind()), whyNotStreamable(resource)); reason != "" {
				if hasObjects(resource) {
					unstreamed = append(unstreamed, source.UnstreamedKind{Kind: kind, Reason: reason})
				}
				continue
			}
			switch known[resource.Kind] {
			case "":
				known[resource.Kind] = version
				kinds = append(kinds, kind)
			case version: // a second resource of the kind
			default:
				others = append(others, kind)
			}
		}
	}
	unstreamed = slices.DeleteFunc(unstreamed, func(u source.UnstreamedKind) bool { return known[u.Kind.Kind] != "" })
	return kinds, others, unstreamed
}

// whyNotStreamable says why a resource cannot be listed and watched, "" if it can.
func whyNotStreamable(resource metav1.APIResource) string {
	switch {
	case strings.Contains(resource.Name, "/"):
		return "it is a subresource"
	case !slices.Contains(resource.Verbs, "list"):
		return "its API server cannot list it"
	case !slices.Contains(resource.Verbs, "watch"):
		return "its API server cannot watch it, so that changes would not be seen"
	}
	return ""
}

// hasObjects is true for a resource that is more than a question to be answered, such as
// a SubjectAccessReview.
func hasObjects(resource metav1.APIResource) bool {
	return !strings.Contains(resource.Name, "/") &&
		(slices.Contains(resource.Verbs, "list") || slices.Contains(resource.Verbs, "get"))
}

func compareGroupVersions(a, b schema.GroupVersion) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version))
}

// equalInventories compares what a reader of an inventory sees. Errors are compared
// by their text.
func equalInventories(a, b *source.Inventory) bool {
	return slices.Equal(a.Kinds, b.Kinds) &&
		slices.Equal(a.OtherVersions, b.OtherVersions) &&
		slices.Equal(a.Unstreamed, b.Unstreamed) &&
		slices.Equal(a.Problems, b.Problems) &&
		maps.EqualFunc(a.FailedGroups, b.FailedGroups, func(x, y error) bool { return x.Error() == y.Error() })
}
