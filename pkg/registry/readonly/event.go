package readonly

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// storedObject is a row on its way to a client: decoded only for an encoder that
// needs that.
type storedObject struct {
	rest *REST
	row  *index.Row
	// revision that the object gets as its resourceVersion.
	revision uint64
}

// GetObjectKind implements runtime.Object.
func (o *storedObject) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Rows are immutable.
func (o *storedObject) DeepCopyObject() runtime.Object { return o }

// decode makes a new object.
func (o *storedObject) decode() (Object, error) {
	object, err := o.rest.decode(o.row)
	if err == nil {
		object.SetResourceVersion(rows.FormatRevision(o.revision))
	}
	return object, err
}

// GetObject implements runtime.CacheableObject.
func (o *storedObject) GetObject() runtime.Object {
	object, err := o.decode()
	if err != nil {
		status := apierrors.NewInternalError(err).Status()
		return &status
	}
	return object
}

// CacheEncode implements runtime.CacheableObject. It keeps nothing. Codec's encoder
// gets the stored object; all others, which may turn it into a Table first, get it
// decoded.
func (o *storedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if strings.HasPrefix(string(id), splicedPrefix) {
		return encode(o, w)
	}
	object, err := o.decode()
	if err != nil {
		return err
	}
	return encode(object, w)
}

// eventObject is the object of a watch event. The encoder of events asks it first,
// and then the encoder of the object in it asks the storedObject.
type eventObject struct {
	storedObject
	// shared is nil for objects that are not shared.
	shared *encodings
}

// DeepCopyObject implements runtime.Object.
func (o *eventObject) DeepCopyObject() runtime.Object { return o }

// CacheEncode implements runtime.CacheableObject. What one watcher has had encoded
// is there for the next one.
func (o *eventObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if o.shared == nil {
		return encode(&o.storedObject, w)
	}
	text, err := o.shared.get(id, func(w io.Writer) error { return encode(&o.storedObject, w) })
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// encodings of an object: one for each media type and event type.
type encodings struct {
	mu   sync.Mutex // protects byID
	byID map[runtime.Identifier]*encoding
}

type encoding struct {
	once sync.Once
	text []byte
	err  error
}

func (e *encodings) get(id runtime.Identifier, encode func(io.Writer) error) ([]byte, error) {
	e.mu.Lock()
	one := e.byID[id]
	if one == nil {
		one = &encoding{}
		if e.byID == nil {
			e.byID = map[runtime.Identifier]*encoding{}
		}
		e.byID[id] = one
	}
	e.mu.Unlock()
	one.once.Do(func() {
		var text bytes.Buffer
		one.err = encode(&text)
		one.text = text.Bytes()
	})
	return one.text, one.err
}

const (
	// recentEvents is how many events of a resource have their objects shared: more
	// than watchers that keep up are apart.
	recentEvents = 1024
	// maxShared is the size of a row up to which it is shared. It bounds the memory that
	// recent events take; the larger an object, the less there is to be gained.
	maxShared = 8 << 10
)

// events are the objects of recent events, for all watchers, by revision.
type events [recentEvents]atomic.Pointer[eventObject]

// object returns the object of the change that has a revision. row is the version
// that is sent, which is the same for all watchers but for those to whom it is gone.
func (e *events) object(rest *REST, row *index.Row, revision uint64) *eventObject {
	if len(row.Value) > maxShared {
		return &eventObject{storedObject: storedObject{rest: rest, row: row, revision: revision}}
	}
	slot := &e[revision%recentEvents]
	if o := slot.Load(); o != nil && o.revision == revision && o.row == row {
		return o
	}
	o := &eventObject{storedObject: storedObject{rest: rest, row: row, revision: revision}, shared: &encodings{}}
	slot.Store(o)
	return o
}

var (
	_ runtime.CacheableObject = (*storedObject)(nil)
	_ runtime.CacheableObject = (*eventObject)(nil)
)
