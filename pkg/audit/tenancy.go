package audit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// A Namespace that is made again under the name of an earlier one may belong to somebody
// else, who must not see what was wrong in the earlier one. So the changes in a Namespace
// leave it when it is deleted: they become cluster-scoped, where those see them who may
// see such objects in all namespaces. To notice a deletion also if it happened while
// nothing was watched, the index has the uid of each Namespace.

// retire makes all changes in a namespace cluster-scoped.
func (l *changeLog) retire(ctx context.Context, tx *index.Tx, namespace string) error {
	page, err := tx.List(ctx, index.Query{Table: rows.AuditChanges, Namespace: namespace})
	if err != nil || len(page.Rows) == 0 {
		return err
	}
	s, err := readLogState(tx.State(bucketMeta))
	if err != nil {
		return err
	}
	for _, row := range page.Rows {
		change, err := decodeChange(row)
		if err != nil {
			return err
		}
		if err := tx.Delete(rows.AuditChanges, row.Key); err != nil {
			return err
		}
		if err := tx.State(bucketChanges).Delete(changeQueueKey(rows.AuditChanges, change)); err != nil {
			return err
		}
		s.Count--
		if err := l.put(tx, &s, rows.ClusterAuditChanges, change); err != nil {
			return err
		}
	}
	return s.write(tx.State(bucketMeta))
}

// whyKindDropped tells why nothing is applied to a kind any more.
func (p *planner) whyKindDropped(gk schema.GroupKind) reasons {
	for _, kind := range p.inventory.Kinds {
		if kind.GroupKind() == gk {
			return p.whyDropped()
		}
	}
	return because(v1alpha1.ReasonKindDeleted)
}

// whyDropped tells why a constraint is not applied to a kind any more.
func (p *planner) whyDropped() reasons {
	set := p.set
	return func(id policy.ConstraintID) v1alpha1.ChangeReason {
		for _, c := range set.Constraints() {
			if c.ID == id {
				return v1alpha1.ReasonPolicyChanged
			}
		}
		for _, r := range set.Rejections() {
			if r.ID == id {
				return v1alpha1.ReasonPolicyRejected
			}
		}
		return v1alpha1.ReasonPolicyDeleted
	}
}
