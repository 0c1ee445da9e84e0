package index

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
)

// A query that the postings narrow is answered in rounds, namespace by namespace in the
// order of keys, until the page is full: the postings tell which rows of a namespace to
// look at, so that a page costs what is on it, however many rows are behind it.
//
// A round is planned from the postings before its transaction begins. The postings are
// then of a revision that is not above the transaction's, and what is not in them has
// changed since the revision that is read: the history has it.

const (
	// roundNamespaces bounds the namespaces that one round looks at, and so how long it
	// holds up the writer.
	roundNamespaces = 512
	// maxLogged is how many changes may have been made since the revision that is read for
	// all of them to be looked at.
	maxLogged = 1000
	// lookup is how many rows can be scanned in the time in which one is found by its id.
	lookup = 4
)

// round is what one transaction looks at.
type round struct {
	parts []part
	// next is the namespace that the round after this one begins with, if last is false.
	next string
	last bool
	// revision of the postings.
	revision uint64
}

// part of a table: a namespace, or all of it.
type part struct {
	namespace  string
	everywhere bool
	// keys are all that there is to look at, if they are known.
	keys []Key
	// ids of the rows to look at; nil stands for all rows.
	ids *roaring64.Bitmap
	// rows is how many rows the part has.
	rows uint64
	// changed is true if rows have changed since the revision that is read, up to that
	// of the postings.
	changed bool
}

// everything is a round that looks at all rows.
func everything(revision uint64) round {
	return round{parts: []part{{everywhere: true}}, last: true, revision: revision}
}

// plan plans the next round. The caller holds the lock of the postings.
func (r *reader) plan() round {
	q, p := r.query, r.db.postings[r.table]
	now := r.db.revision
	if r.touched == nil && r.revision > now {
		return everything(now) // the postings may not know what was written up to then
	}
	namespaces := r.namespaces()
	if q.Name != "" {
		named := part{keys: make([]Key, len(namespaces))}
		for i, namespace := range namespaces {
			named.keys[i] = Key{Namespace: namespace, Name: q.Name}
		}
		return round{parts: []part{named}, last: true, revision: now}
	}
	if !r.planned {
		r.planned = true
		r.found, _ = p.find(q.Terms)
		inScope := p.rows.GetCardinality()
		if q.Scope != nil {
			inScope = r.db.groups[r.table].rowsIn(q.Scope)
			r.found = p.findGroups(q.Scope, inScope, r.found)
		}
		if r.found != nil && r.few(len(namespaces), inScope, now) {
			all := part{everywhere: true, ids: r.found, changed: r.touched == nil && now > r.revision}
			return round{parts: []part{all}, last: true, revision: now}
		}
	}
	if r.found == nil {
		return everything(now)
	}
	return r.planNamespaces(namespaces, now)
}

// few tells whether looking at all rows found is less than looking for those of a page
// namespace by namespace.
func (r *reader) few(namespaces int, inScope, now uint64) bool {
	n, limit := r.found.GetCardinality(), uint64(r.query.Limit)
	switch {
	case n > inScope, r.touched == nil && now > r.revision+maxLogged:
		return false
	case limit == 0 || n <= limit:
		return true
	}
	// The rows of a page are in limit/n of the namespaces.
	return n <= limit*uint64(namespaces)/n
}

func (r *reader) planNamespaces(namespaces []string, now uint64) round {
	p, g := r.db.postings[r.table], r.db.groups[r.table]
	out := round{revision: now}
	found := uint64(0)
	for i, namespace := range namespaces {
		if i == roundNamespaces || found >= r.wanted() {
			out.next = namespace
			return out
		}
		in := part{namespace: namespace, ids: roaring64.New(), changed: r.touched == nil && g.changed[namespace] > r.revision}
		if rows := p.namespaces[namespace]; rows != nil {
			in.ids, in.rows = roaring64.And(r.found, rows), rows.GetCardinality()
		}
		if in.ids.IsEmpty() && !in.changed && !r.touches(namespace) {
			continue
		}
		found += in.ids.GetCardinality()
		out.parts = append(out.parts, in)
	}
	out.last = true
	return out
}

// wanted is how many rows the page still needs, and one more to know whether there are
// more.
func (r *reader) wanted() uint64 {
	if r.query.Limit == 0 {
		return ^uint64(0)
	}
	return uint64(r.query.Limit+1) - uint64(len(r.page.Rows))
}

// namespaces are those in which rows may be selected and that have not been looked at,
// sorted.
func (r *reader) namespaces() []string {
	q, g := r.query, r.db.groups[r.table]
	all := g.namespaces
	switch {
	case q.Scope != nil:
		all = q.Scope.namespaces
	case q.Namespace != "":
		return []string{q.Namespace}
	case len(r.touched) > 0:
		all = slices.Clone(all)
		for k := range r.touched {
			all = append(all, k.Namespace)
		}
		slices.Sort(all)
		all = slices.Compact(all)
	}
	if q.Namespace != "" {
		if !q.Scope.hasNamespace(q.Namespace) {
			return nil
		}
		return []string{q.Namespace}
	}
	from := r.next
	if q.After != nil {
		from = max(from, q.After.Namespace)
	}
	at, _ := slices.BinarySearch(all, from)
	return all[at:]
}

// touches tells whether the transaction itself has written rows of a namespace.
func (r *reader) touches(namespace string) bool {
	for k := range r.touched {
		if k.Namespace == namespace {
			return true
		}
	}
	return false
}

// look looks at the rows of a round. It returns errEnough if the page is full.
func (r *reader) look(ctx context.Context, in round, inFile uint64) error {
	for i := range in.parts {
		if i > 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		p := &in.parts[i]
		// What has changed between the planning of the round and its transaction is not in
		// the postings.
		p.changed = p.changed || r.touched == nil && inFile > in.revision
		if err := r.lookAt(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) lookAt(ctx context.Context, p *part) error {
	switch {
	case p.keys != nil:
		return r.visitKeys(ctx, p.keys)
	case p.ids == nil:
		return r.scan(ctx)
	case !p.everywhere && r.scanIsCheaper(p):
		prefix := namespacePrefix(p.namespace)
		return r.scanRange(ctx, r.firstOf(prefix), prefix, p.ids)
	}
	keys, err := r.keysOf(p)
	if err != nil {
		return err
	}
	return r.visitKeys(ctx, keys)
}

// scanIsCheaper tells whether the rows that the page needs are found sooner by a scan
// than by their ids, of which all have to be looked up for them to be sorted.
func (r *reader) scanIsCheaper(p *part) bool {
	n := p.ids.GetCardinality()
	if n == 0 {
		return false
	}
	return p.rows*min(n, r.wanted())/n < n*lookup
}

// keysOf returns the keys of the rows of a part that may be selected, sorted.
func (r *reader) keysOf(p *part) ([]Key, error) {
	var keys []Key
	ids := r.bolt.Bucket(bucketIDs).Bucket([]byte(r.query.Table))
	for it := p.ids.Iterator(); it.HasNext(); {
		id := encodeUint64(it.Next())
		sealed := ids.Get(id)
		if sealed == nil {
			continue // deleted since: the history has it
		}
		payload, err := unseal(id, sealed)
		if err != nil {
			return nil, err
		}
		k, err := decodeKey(payload)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	for k := range r.touched {
		if p.everywhere || k.Namespace == p.namespace {
			keys = append(keys, k)
		}
	}
	var err error
	switch {
	case p.changed && p.everywhere:
		keys, err = r.appendLogged(keys)
	case p.changed:
		keys, err = r.appendSuperseded(keys, p.namespace)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(keys), err
}

// appendLogged appends the keys of the rows that have changed since the revision read.
func (r *reader) appendLogged(keys []Key) ([]Key, error) {
	c := r.bolt.Bucket(bucketLog).Cursor()
	for k, v := c.Seek(encodeUint64(r.revision + 1)); k != nil; k, v = c.Next() {
		payload, err := unseal(k, v)
		if err != nil {
			return nil, err
		}
		entry, err := decodeLogEntry(payload, len(r.db.opts.Tables))
		if err != nil {
			return nil, err
		}
		if entry.table == r.table {
			keys = append(keys, entry.key)
		}
	}
	return keys, nil
}

// appendSuperseded appends the keys of the rows of a namespace that have a history.
func (r *reader) appendSuperseded(keys []Key, namespace string) ([]Key, error) {
	prefix := namespacePrefix(namespace)
	c := r.bolt.Bucket(bucketHist).Bucket([]byte(r.query.Table)).Cursor()
	for k, _ := c.Seek(r.firstOf(prefix)); k != nil && bytes.HasPrefix(k, prefix); {
		key, _, err := splitHistoryKey(k)
		if err != nil {
			return nil, err
		}
		decoded, err := decodeKey(key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, decoded)
		k, _ = c.Seek(historyKey(key, ^uint64(0))) // all versions of a row are behind one another
	}
	return keys, nil
}

// visitKeys visits rows by their keys, which are sorted.
func (r *reader) visitKeys(ctx context.Context, keys []Key) error {
	first, prefix := r.bounds()
	versions := versionsOf(r.bolt, r.query.Table)
	for _, k := range keys {
		key := encodeKey(k)
		if bytes.Compare(key, first) < 0 || !bytes.HasPrefix(key, prefix) {
			continue
		}
		if r.query.Scope != nil && !r.query.Scope.hasNamespace(k.Namespace) {
			continue
		}
		row, err := versions.at(key, r.revision)
		if err != nil {
			return err
		}
		if row == nil {
			continue
		}
		if err := r.accept(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// isMember tells whether a current row is one of those that may be selected.
func (r *reader) isMember(key, sealed []byte, members *roaring64.Bitmap) (bool, error) {
	payload, err := unseal(key, sealed)
	if err != nil {
		return false, err
	}
	d := decoder{data: payload}
	d.uint64() // its revision
	if members.Contains(d.uint64()) {
		return true, nil
	}
	if len(r.touched) == 0 {
		return false, nil
	}
	k, err := decodeKey(key)
	if err != nil {
		return false, err
	}
	_, touched := r.touched[k]
	return touched, nil
}
