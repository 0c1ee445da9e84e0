package directory

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"policy.example.io/policy-apiserver/pkg/source"
)

// failed returns a snapshot that holds what s does and says that the folder cannot
// be read.
func (s *snapshot) failed(path string, err error) *snapshot {
	next := *s
	next.err = fmt.Errorf("cannot read %s: %w; its objects are kept as they were last seen", path, cause(err))
	inventory := *s.inventory
	problem := source.Problem{Subject: path, Message: shorten(next.err.Error())}
	inventory.Problems = limit(append([]source.Problem{problem}, s.problems...), s.moreProblems)
	next.inventory = &inventory
	return &next
}

// Stream implements source.Source. The kind's version does not matter.
func (s *Source) Stream(ctx context.Context, kind source.Kind, handler source.Handler) {
	st := stream{kind: kind, handler: handler}
	for ctx.Err() == nil {
		snap, replaced := s.snapshot()
		st.follow(ctx, snap)
		select {
		case <-replaced:
		case <-ctx.Done():
		}
	}
}

// List implements source.Source. It looks through the folder.
func (s *Source) List(ctx context.Context, kind source.Kind, visit func(obj *unstructured.Unstructured) error) (string, error) {
	if _, err := s.update(); err != nil {
		return "", err
	}
	snap, _ := s.snapshot()
	if snap.err != nil {
		return "", snap.err
	}
	objects := snap.objects[kind.GroupKind()]
	for _, o := range objects.sorted() {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		obj, err := o.render()
		if err != nil {
			return "", err
		}
		if err := visit(obj); err != nil {
			return "", err
		}
	}
	return objects.version(), nil
}

// version changes with the objects.
func (m objectMap) version() string {
	var versions strings.Builder
	for _, o := range m.sorted() {
		fmt.Fprintln(&versions, o.key, o.hash)
	}
	return hash([]byte(versions.String()))
}

// stream is what a handler was told so far.
type stream struct {
	kind    source.Kind
	handler source.Handler
	// objects that the handler knows of, nil if it needs a list.
	objects objectMap
	// failure that was reported last, empty after a list.
	failure string
}

// follow tells the handler what is different in a snapshot.
func (s *stream) follow(ctx context.Context, snap *snapshot) {
	if snap.err != nil {
		s.fail(snap.err)
		return
	}
	objects := snap.objects[s.kind.GroupKind()]
	if objects == nil {
		objects = objectMap{}
	}
	var err error
	if s.objects == nil {
		err = s.list(ctx, objects)
	} else {
		err = s.change(ctx, objects)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.fail(err)
	default:
		s.objects = objects
	}
}

func (s *stream) fail(err error) {
	s.objects = nil
	if s.failure != err.Error() {
		s.failure = err.Error()
		s.handler.Failed(err)
	}
}

// list hands over all objects.
func (s *stream) list(ctx context.Context, objects objectMap) error {
	s.failure = ""
	s.handler.ListStarted()
	for _, o := range objects.sorted() {
		if err := s.upsert(ctx, o); err != nil {
			return err
		}
	}
	s.handler.Listed(objects.version())
	return nil
}

// change hands over the differences between the objects that the handler knows of
// and those that there are.
func (s *stream) change(ctx context.Context, objects objectMap) error {
	for _, o := range s.objects.sorted() {
		key := o.namespacedName()
		if now, ok := objects[key]; !ok || now.key.UID != o.key.UID {
			s.handler.Delete(o.key)
		}
	}
	for _, o := range objects.sorted() {
		if before, ok := s.objects[o.namespacedName()]; ok && before.same(o) {
			continue
		}
		if err := s.upsert(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) upsert(ctx context.Context, o *object) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	obj, err := o.render()
	if err != nil {
		return err
	}
	s.handler.Upsert(obj)
	return nil
}
