package audit

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The records of a Namespace's objects go with it, without waiting for the delete of
// each. The streams of other kinds may be ahead of the one of Namespaces or behind
// it: what was dropped can be of objects in a new Namespace of the same name, which
// their stream has handed over already. So when there is a Namespace of that name,
// the kinds of which something was dropped are listed again.

// droppedRecords are those that went with a Namespace.
type droppedRecords struct {
	kinds []schema.GroupKind
	at    time.Time
}

// dropMemory is how long a Namespace may take to come back. It is far more than
// streams of the same source are apart.
const dropMemory = 10 * time.Minute

// namespaceDropped says of which kinds records went with a Namespace. It may be
// called by anyone.
func (p *planner) namespaceDropped(name string, kinds []schema.GroupKind) {
	now := p.a.clock.Now()
	p.mu.Lock()
	for other, dropped := range p.nsDropped {
		if now.Sub(dropped.at) > dropMemory {
			delete(p.nsDropped, other)
		}
	}
	p.nsDropped[name] = droppedRecords{kinds: kinds, at: now}
	p.mu.Unlock()
	if p.namespaces.get("", name) != nil {
		p.namespaceBack(name)
		p.notify()
	}
}

// namespaceBack has the kinds listed again of which records went with an earlier
// Namespace of the name.
func (p *planner) namespaceBack(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, gk := range p.nsDropped[name].kinds {
		if p.pending.kinds == nil {
			p.pending.kinds = map[schema.GroupKind]struct{}{}
		}
		p.pending.kinds[gk] = struct{}{}
	}
	delete(p.nsDropped, name)
}
