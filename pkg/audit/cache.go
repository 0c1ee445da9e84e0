package audit

import (
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/source"
)

// objectCache keeps the objects of a kind that others are judged with: templates,
// constraints and Namespaces. It gets what the kind's stream gets.
type objectCache struct {
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

// cachedObject is an object without status and managedFields, and a digest of the
// rest of it without its resourceVersion.
type cachedObject struct {
	*unstructured.Unstructured
	digest string
}

func newObjectCache(changed func(old, new *cachedObject)) *objectCache {
	return &objectCache{changed: changed, objects: map[source.ObjectKey]*cachedObject{}}
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
	entry := newCachedObject(obj)
	c.mu.Lock()
	old := c.objects[key]
	c.objects[key] = entry
	synced := c.synced
	c.mu.Unlock()
	if synced && (old == nil || old.digest != entry.digest || !equality.Semantic.DeepEqual(old.GetUID(), entry.GetUID())) {
		c.changed(old, entry)
	}
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

func newCachedObject(obj *unstructured.Unstructured) *cachedObject {
	copied := obj.DeepCopy()
	copied.SetManagedFields(nil)
	digested := copied.DeepCopy()
	digested.SetResourceVersion("")
	unstructured.RemoveNestedField(digested.Object, "status")
	// An object that came in as JSON can be written as JSON; were it not so, an empty
	// digest would only make the object look changed each time.
	data, err := json.Marshal(digested.Object)
	if err != nil {
		return &cachedObject{Unstructured: copied}
	}
	return &cachedObject{Unstructured: copied, digest: shortDigest(data)}
}
