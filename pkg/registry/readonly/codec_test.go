package readonly_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"pgregory.net/rapid"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/apiserver"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/index/indextest"
	"policy.example.io/policy-apiserver/pkg/registry/auditresult"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// storage is a REST with the index behind it.
type storage struct {
	testing.TB
	*readonly.REST
	db  *index.DB
	now time.Time
	// read counts the rows that were read from the index.
	read atomic.Int64
	// plain is the serializer of k8s.io/apiserver, codec the one under test.
	plain, codec runtime.NegotiatedSerializer
}

// countingIndex tells the storage what is read.
type countingIndex struct {
	*index.DB
	storage *storage
}

func (c countingIndex) List(ctx context.Context, q index.Query) (*index.Page, error) {
	page, err := c.DB.List(ctx, q)
	if err == nil {
		c.storage.read.Add(int64(len(page.Rows)))
	}
	return page, err
}

type alwaysReady struct{}

func (alwaysReady) Ready(index.Table) error      { return nil }
func (alwaysReady) Stalled() error               { return nil }
func (alwaysReady) Notices(index.Table) []string { return nil }

func newStorage(t testing.TB) *storage {
	t.Helper()
	s := &storage{TB: t, now: time.Now()}
	s.db = indextest.MustOpen(t, rows.Schemas(), func(o *index.Options) {
		o.History, o.Now = time.Minute, func() time.Time { return s.now }
	})
	s.REST = readonly.NewREST(auditresult.Namespaced(), readonly.Backend{Index: countingIndex{s.db, s}, Feed: feed.New(s.db), Readiness: alwaysReady{}})
	scheme, codecs, err := apiserver.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	s.plain = genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, scheme, runtime.NewParameterCodec(scheme), codecs).NegotiatedSerializer
	s.codec = readonly.Codec{NegotiatedSerializer: s.plain}
	return s
}

// streams is the context of a request whose list may be streamed.
func streams(t testing.TB, accept string) context.Context {
	t.Helper()
	var ctx context.Context
	handler := readonly.WithStreams(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { ctx = req.Context() }))
	request := httptest.NewRequestWithContext(genericapirequest.WithNamespace(t.Context(), ""), http.MethodGet, "/", nil)
	request.Header.Set("Accept", accept)
	handler.ServeHTTP(httptest.NewRecorder(), request)
	return ctx
}

func (s *storage) put(objects ...metav1.Object) uint64 {
	s.Helper()
	revision, err := s.db.Update(context.Background(), func(tx *index.Tx) error {
		for _, object := range objects {
			row, err := rows.Encode(object)
			if err != nil {
				return err
			}
			if err := tx.Put(row.Table, row.Key, row.Value, row.Attrs); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return revision
}

// clear deletes all objects.
func (s *storage) clear() {
	s.Helper()
	_, err := s.db.Update(context.Background(), func(tx *index.Tx) error {
		page, err := tx.List(context.Background(), index.Query{Table: rows.AuditResults})
		if err != nil {
			return err
		}
		for _, row := range page.Rows {
			if err := tx.Delete(rows.AuditResults, row.Key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

// result is a finding; typed ones have kind and apiVersion, as those of the audit.
func result(namespace, name, text string, typed bool) *v1alpha1.AuditResult {
	details, _ := json.Marshal(map[string]string{"why": text}) // which cannot fail
	r := &v1alpha1.AuditResult{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", Annotations: map[string]string{"text": text}},
		Finding: v1alpha1.Finding{
			Result: v1alpha1.ResultFail, Message: text,
			Violations: []v1alpha1.Violation{{Message: text, Details: &runtime.RawExtension{Raw: details}}},
		},
	}
	if typed {
		r.TypeMeta = metav1.TypeMeta{APIVersion: "policy.example.io/v1alpha1", Kind: "AuditResult"}
	}
	return r
}

// encode encodes for a media type, as JSON for people if it is pretty.
func (s *storage) encode(serializer runtime.NegotiatedSerializer, mediaType string, pretty bool, object runtime.Object) (string, error) {
	info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), mediaType)
	if !ok {
		s.Fatalf("no %s", mediaType)
	}
	encoder := info.Serializer
	if pretty {
		encoder = info.PrettySerializer
	}
	var out bytes.Buffer
	err := serializer.EncoderForVersion(encoder, v1alpha1.SchemeGroupVersion).Encode(object, &out)
	return out.String(), err
}

var text = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "<&>", "\u2028", `"resourceVersion":"1"`}))

// TestStreamedLists compares streams, in all encodings, with lists that the plain
// encoder writes.
func TestStreamedLists(t *testing.T) {
	s := newStorage(t)
	streaming := streams(t, "application/json")
	rapid.Check(t, func(t *rapid.T) {
		s.clear()
		names := rapid.SliceOfNDistinct(rapid.StringMatching("[a-z]{1,3}"), 0, 5, rapid.ID[string]).Draw(t, "names")
		for _, name := range names {
			s.put(result(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), name, text.Draw(t, "text"), rapid.Bool().Draw(t, "typed")))
		}
		options := &metainternalversion.ListOptions{Limit: rapid.Int64Range(0, 4).Draw(t, "limit")}
		want, err := s.List(context.Background(), options)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := want.(*v1alpha1.AuditResultList); !ok {
			t.Fatalf("a list that must not be streamed is a %T", want)
		}
		got, err := s.List(streaming, options)
		if err != nil {
			t.Fatal(err)
		}
		for _, as := range []struct {
			mediaType string
			pretty    bool
		}{{"application/json", false}, {"application/json", false}, {"application/json", true}, {"application/yaml", false}} {
			// YAML has no way to write some characters.
			wantText, wantErr := s.encode(s.plain, as.mediaType, as.pretty, want)
			gotText, err := s.encode(s.codec, as.mediaType, as.pretty, got)
			if diff := cmp.Diff(wantText, gotText); diff != "" || (err != nil) != (wantErr != nil) {
				t.Fatalf("%+v: %v, want %v (-want +got):\n%s", as, err, wantErr, diff)
			}
		}
	})
}

// TestEncodedEvents compares the objects of events with those that the plain
// encoder writes.
func TestEncodedEvents(t *testing.T) {
	s := newStorage(t)
	s.put(result("a", "initial", "<x>", true), result("a", "untyped", "<x>", false))
	ctx, cancel := context.WithCancel(streams(t, "application/json"))
	defer cancel()
	var watches []watch.Interface
	for range 2 { // the second one gets what the first one has had encoded
		w, err := s.Watch(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	s.checkEvents(watches, 2)
	s.put(result("a", "typed", "<x>", true))
	s.put(result("a", "initial", "y", true))
	s.put(result("a", "untyped", "y", false))
	s.checkEvents(watches, 3)
}

// checkEvents takes n events of each watch.
func (s *storage) checkEvents(watches []watch.Interface, n int) {
	s.Helper()
	for range n {
		for _, w := range watches {
			event := <-w.ResultChan()
			object, ok := event.Object.(runtime.CacheableObject)
			if !ok {
				s.Fatalf("the object is a %T", event.Object)
			}
			decoded := object.GetObject()
			if accessor, err := meta.Accessor(decoded); err != nil || accessor.GetResourceVersion() == "" {
				s.Fatalf("%+v: %v", decoded, err)
			}
			for _, as := range []string{"application/json", "application/yaml"} {
				want, err := s.encode(s.plain, as, false, decoded)
				if err != nil {
					s.Fatal(err)
				}
				if got, err := s.encodeEvent(object, as); err != nil || got != want {
					s.Errorf("%s: %v: %s\nwant %s", as, err, got, want)
				}
			}
		}
	}
}

// encodeEvent encodes as the handler of watches does: the object of the event is
// asked for the text of the event, and for that of the object in it.
func (s *storage) encodeEvent(object runtime.CacheableObject, mediaType string) (string, error) {
	var out bytes.Buffer
	err := object.CacheEncode(runtime.Identifier("event of "+mediaType), func(object runtime.Object, w io.Writer) error {
		info, _ := runtime.SerializerInfoForMediaType(s.codec.SupportedMediaTypes(), mediaType)
		encoder := s.codec.EncoderForVersion(info.Serializer, v1alpha1.SchemeGroupVersion)
		if inner, ok := object.(runtime.CacheableObject); ok {
			return inner.CacheEncode(encoder.Identifier(), encoder.Encode, w)
		}
		return encoder.Encode(object, w)
	}, &out)
	return out.String(), err
}

// TestEventsAreShared encodes an event once for all watchers.
func TestEventsAreShared(t *testing.T) {
	s := newStorage(t)
	ctx := streams(t, "application/json")
	from := rows.FormatRevision(s.db.Revision())
	encoded := 0
	encode := func(_ runtime.Object, w io.Writer) error {
		encoded++
		_, err := io.WriteString(w, "text")
		return err
	}
	s.put(result("a", "one", "x", true))
	s.put(result("a", "large", strings.Repeat("x", 10_000), true))
	for range 10 {
		w, err := s.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: from})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			object, ok := (<-w.ResultChan()).Object.(runtime.CacheableObject)
			var out bytes.Buffer
			if !ok || object.CacheEncode("id", encode, &out) != nil || out.String() != "text" {
				t.Fatalf("%T: %s", object, &out)
			}
		}
		w.Stop()
	}
	// The small one once, and the large one, of which nothing is kept, each time.
	if encoded != 1+10 {
		t.Errorf("encoded %d times", encoded)
	}
}

// many puts n objects.
func (s *storage) many(n int) {
	var objects []metav1.Object
	for i := range n {
		objects = append(objects, result("a", fmt.Sprintf("r%06d", i), "x", true))
	}
	s.put(objects...)
}

// TestStreamReadsAhead reads no more of the index than what the client takes.
func TestStreamReadsAhead(t *testing.T) {
	const n = 20_000
	s := newStorage(t)
	s.many(n)
	list, err := s.List(streams(t, "application/json"), &metainternalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		info, _ := runtime.SerializerInfoForMediaType(s.codec.SupportedMediaTypes(), runtime.ContentTypeJSON)
		err := s.codec.EncoderForVersion(info.Serializer, v1alpha1.SchemeGroupVersion).Encode(list, writer)
		done <- errors.Join(err, writer.Close())
	}()
	if _, err := io.ReadFull(reader, make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	// The writer is at its second write and cannot go on.
	if read := s.read.Load(); read > 501 {
		t.Errorf("%d rows were read for the first bytes", read)
	}
	rest, err := io.ReadAll(reader)
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if got := bytes.Count(rest, []byte(`"name":"r`)); got < n-5 || s.read.Load() != n {
		t.Errorf("%d objects, %d rows read", got, s.read.Load())
	}
}

// TestStreamEndsEarly leaves a list without its end if it cannot be read to the end.
func TestStreamEndsEarly(t *testing.T) {
	s := newStorage(t)
	s.many(2000)
	list, err := s.List(streams(t, "application/json"), &metainternalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.put(result("a", "later", "x", true))
	s.now = s.now.Add(time.Hour)
	if err := s.db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	got, err := s.encode(s.codec, runtime.ContentTypeJSON, false, list)
	if err == nil || json.Valid([]byte(got)) || len(got) == 0 {
		t.Errorf("the list ends in %v after %d bytes", err, len(got))
	}
}

// TestStreamsOnlyWhereTheyAreEncoded leaves lists alone that are to become others.
func TestStreamsOnlyWhereTheyAreEncoded(t *testing.T) {
	s := newStorage(t)
	for accept, streamed := range map[string]bool{
		"":                 true,
		"application/json": true,
		"application/vnd.kubernetes.protobuf,application/json":                    true,
		"application/json;as=Table;v=v1;g=meta.k8s.io":                            false,
		"application/json; AS = PartialObjectMetadataList ;v=v1":                  false,
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json":           false,
		"application/json,application/json;as=PartialObjectMetadataList;v=v1;g=x": false,
	} {
		list, err := s.List(streams(t, accept), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, whole := list.(*v1alpha1.AuditResultList); whole == streamed {
			t.Errorf("%q is answered with a %T", accept, list)
		}
	}
}

// BenchmarkPage reads and encodes a page of 500.
func BenchmarkPage(b *testing.B) {
	s := newStorage(b)
	s.many(20_000)
	ctx := streams(b, "application/json")
	info, _ := runtime.SerializerInfoForMediaType(s.codec.SupportedMediaTypes(), runtime.ContentTypeJSON)
	for _, serializer := range []struct {
		name string
		runtime.NegotiatedSerializer
		ctx context.Context
	}{{"stored", s.codec, ctx}, {"plain", s.plain, b.Context()}} {
		b.Run(serializer.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				list, err := s.List(serializer.ctx, &metainternalversion.ListOptions{Limit: 500})
				if err != nil {
					b.Fatal(err)
				}
				if err := serializer.EncoderForVersion(info.Serializer, v1alpha1.SchemeGroupVersion).Encode(list, io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
