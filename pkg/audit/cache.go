package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/source"
)

// objectCache keeps the objects of a kind that others are judged with: templates,
// constraints, Namespaces, and those of data.inventory. It gets what the kind's stream
// gets.
type objectCache struct {
	// keep makes the entry of an object, nil if it is not to be kept.
	keep func(obj *unstructured.Unstructured) (*cachedObject, error)
	// changed is called when the cache has become complete, and after that for each
	// object that has changed in more than its status. old or new is nil if the
	// object is new or gone; both are nil when the cache has become complete or its
	// state has changed.
	changed func(old, new *cachedObject)

	mu      sync.RWMutex // protects the fields below
	objects map[source.ObjectKey]*cachedObject
	synced  bool
	err     error

	seen map[source.ObjectKey]struct{} // of the list under way; only used by the stream
}

// cachedObject is what is kept of an object.
type cachedObject struct {
	// The object without managedFields, nil if it is kept as an item.
	*unstructured.Unstructured
	// item is what policies read of it in data.inventory, nil if it is kept itself.
	item *policy.InventoryItem
	// digest of what counts as a change: of an object that is kept itself, all but its
	// status and its resourceVersion.
	digest string
}

func newObjectCache(changed func(old, new *cachedObject)) *objectCache {
	return &objectCache{keep: keepObject, changed: changed, objects: map[source.ObjectKey]*cachedObject{}}
}

// get returns an object by name, nil if it is not there.
func (c *objectCache) get(namespace, name string) *cachedObject {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.objects[source.ObjectKey{Namespace: namespace, Name: name}]
}

// all returns the objects in no order.
func (c *objectCache) all() []*unstructured.Unstructured {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*unstructured.Unstructured, 0, len(c.objects))
	for _, obj := range c.objects {
		out = append(out, obj.Unstructured)
	}
	return out
}

// state tells whether the cache has been complete once, and what is wrong with
// its stream at the moment.
func (c *objectCache) state() (synced bool, err error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.synced, c.err
}

func (c *objectCache) listStarted() { c.seen = map[source.ObjectKey]struct{}{} }

// upsert takes an object that it shares with others and does not modify.
func (c *objectCache) upsert(obj *unstructured.Unstructured) {
	key := source.ObjectKey{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	if c.seen != nil {
		c.seen[key] = struct{}{}
	}
	entry, err := c.keep(obj)
	if err != nil {
		c.failed(err)
		return
	}
	if entry == nil {
		c.delete(key)
		return
	}
	c.mu.Lock()
	old := c.objects[key]
	c.objects[key] = entry
	synced := c.synced
	c.mu.Unlock()
	if synced && (old == nil || old.digest != entry.digest) {
		c.changed(old, entry)
	}
}

// has tells whether the cache has an object as it is, or rightly does not have it.
func (c *objectCache) has(obj *unstructured.Unstructured) (bool, error) {
	entry, err := c.keep(obj)
	if err != nil {
		return false, err
	}
	old := c.get(obj.GetNamespace(), obj.GetName())
	if old == nil || entry == nil {
		return old == nil && entry == nil, nil
	}
	return old.digest == entry.digest, nil
}

// keys returns the keys of the objects, in no order.
func (c *objectCache) keys() []source.ObjectKey {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Keys(c.objects))
}

func (c *objectCache) delete(key source.ObjectKey) {
	key.UID = ""
	c.mu.Lock()
	old := c.objects[key]
	delete(c.objects, key)
	c.mu.Unlock()
	if old != nil {
		c.changed(old, nil)
	}
}

// listed returns the objects that are gone since the list before.
func (c *objectCache) listed() []*cachedObject {
	var gone []*cachedObject
	c.mu.Lock()
	for key, obj := range c.objects {
		if _, ok := c.seen[key]; !ok {
			delete(c.objects, key)
			gone = append(gone, obj)
		}
	}
	c.seen = nil
	news := !c.synced || c.err != nil
	c.synced, c.err = true, nil
	c.mu.Unlock()
	if news {
		c.changed(nil, nil)
	}
	for _, obj := range gone {
		c.changed(obj, nil)
	}
	return gone
}

func (c *objectCache) failed(err error) {
	c.mu.Lock()
	news := c.err == nil || c.err.Error() != err.Error()
	c.err = err
	c.mu.Unlock()
	if news {
		c.changed(nil, nil)
	}
}

// items returns the items of data.inventory, in no order.
func (c *objectCache) items() []*policy.InventoryItem {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*policy.InventoryItem, 0, len(c.objects))
	for _, obj := range c.objects {
		out = append(out, obj.item)
	}
	return out
}

// keepItem keeps what a view shows of objects.
func keepItem(view *policy.InventoryView) func(obj *unstructured.Unstructured) (*cachedObject, error) {
	return func(obj *unstructured.Unstructured) (*cachedObject, error) {
		item, err := view.Item(obj)
		if item == nil || err != nil {
			return nil, err
		}
		return &cachedObject{item: item, digest: string(item.Digest[:])}, nil
	}
}

// keepObject keeps objects themselves.
func keepObject(obj *unstructured.Unstructured) (*cachedObject, error) {
	copied := obj.DeepCopy()
	copied.SetManagedFields(nil)
	digested := copied.DeepCopy()
	digested.SetResourceVersion("")
	unstructured.RemoveNestedField(digested.Object, "status")
	data, err := json.Marshal(digested.Object)
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", obj.GetKind(), obj.GetNamespace(), obj.GetName(), err)
	}
	return &cachedObject{Unstructured: copied, digest: shortDigest(data)}, nil
}
