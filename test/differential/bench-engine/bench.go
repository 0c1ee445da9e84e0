package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/open-policy-agent/frameworks/constraint/pkg/types"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/test/differential/corpus"
	"policy.example.io/policy-apiserver/test/differential/engine"
	"policy.example.io/policy-apiserver/test/differential/peer"
)

// batch is how many objects a worker takes at once.
const batch = 16

type bench struct {
	policies  *corpus.Policies
	objects   *corpus.Objects
	directory string // for Gatekeeper's page cache
}

func (b *bench) newPeer(ctx context.Context) (*peer.Audit, error) {
	audit, err := peer.New()
	if err != nil {
		return nil, err
	}
	for _, t := range b.policies.Templates {
		if err := audit.AddTemplate(ctx, t); err != nil {
			return nil, fmt.Errorf("template %s: %w", t.GetName(), err)
		}
	}
	for _, c := range b.policies.Constraints {
		if err := audit.AddConstraint(ctx, c); err != nil {
			return nil, fmt.Errorf("constraint %s: %w", c.GetName(), err)
		}
	}
	for _, n := range b.objects.Namespaces {
		if err := audit.AddNamespace(n); err != nil {
			return nil, err
		}
	}
	return audit, nil
}

func (b *bench) newEngine(ctx context.Context) (*engine.Set, error) {
	set := engine.Compile(ctx, b.policies.Templates, b.policies.Constraints)
	for id, message := range set.Rejected() {
		return nil, fmt.Errorf("%s is rejected: %s", id, message)
	}
	return set, nil
}

func (b *bench) preparePeer(ctx context.Context) (func() error, error) {
	audit, err := b.newPeer(ctx)
	if err != nil {
		return nil, err
	}
	return func() error {
		return audit.Run(ctx, b.directory, b.objects.Items, func(*unstructured.Unstructured, []*types.Result) {})
	}, nil
}

func (b *bench) prepareEngine(workers int) func(context.Context) (func() error, error) {
	return func(ctx context.Context) (func() error, error) {
		set, err := b.newEngine(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return b.runEngine(ctx, set, workers) }, nil
	}
}

// runEngine judges all objects with some goroutines.
func (b *bench) runEngine(ctx context.Context, set *engine.Set, workers int) error {
	var next atomic.Int64
	var group errgroup.Group
	for range workers {
		auditor := set.Auditor()
		group.Go(func() error {
			for {
				end := int(next.Add(batch))
				start := end - batch
				if start >= len(b.objects.Items) {
					return nil
				}
				for _, obj := range b.objects.Items[start:min(end, len(b.objects.Items))] {
					for _, v := range auditor.Review(ctx, obj, b.objects.Namespace(obj)) {
						if v.Outcome == engine.Error {
							return fmt.Errorf("%s: %s", v.Constraint.ID.Name, v.Message)
						}
					}
				}
			}
		})
	}
	return group.Wait()
}

// compare audits all objects with both engines and returns how many violations
// both find; what only one of them finds is an error.
func (b *bench) compare(ctx context.Context) (int, error) {
	theirs, err := b.peerFindings(ctx)
	if err != nil {
		return 0, err
	}
	ours, err := b.engineFindings(ctx)
	if err != nil {
		return 0, err
	}
	var differences []string
	for finding := range theirs {
		if !ours[finding] {
			differences = append(differences, "only Gatekeeper: "+finding)
		}
	}
	for finding := range ours {
		if !theirs[finding] {
			differences = append(differences, "only this engine: "+finding)
		}
	}
	if len(differences) > 0 {
		slices.Sort(differences)
		return 0, fmt.Errorf("%d differences:\n%s", len(differences), strings.Join(differences[:min(20, len(differences))], "\n"))
	}
	return len(ours), nil
}

func finding(obj *unstructured.Unstructured, constraint, message string, details []byte) string {
	return fmt.Sprintf("%s %s/%s@%s %s: %s %s", obj.GetKind(), obj.GetNamespace(), obj.GetName(), obj.GetResourceVersion(), constraint, message, details)
}

func (b *bench) peerFindings(ctx context.Context) (map[string]bool, error) {
	audit, err := b.newPeer(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	var failed error
	err = audit.Run(ctx, b.directory, b.objects.Items, func(obj *unstructured.Unstructured, results []*types.Result) {
		converted, err := peer.Convert(results)
		if err != nil {
			failed = err
		}
		for _, r := range converted {
			found[finding(obj, r.Kind+"/"+r.Name, r.Message, r.Details)] = true
		}
	})
	if err == nil {
		err = failed
	}
	return found, err
}

func (b *bench) engineFindings(ctx context.Context) (map[string]bool, error) {
	set, err := b.newEngine(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	auditor := set.Auditor()
	for _, obj := range b.objects.Items {
		for _, v := range auditor.Review(ctx, obj, b.objects.Namespace(obj)) {
			id := v.Constraint.ID.Kind + "/" + v.Constraint.ID.Name
			if v.Outcome == engine.Error {
				found[finding(obj, id, "error: "+v.Message, nil)] = true
			}
			for _, violation := range v.Violations {
				found[finding(obj, id, violation.Message, violation.Details)] = true
			}
		}
	}
	return found, nil
}
