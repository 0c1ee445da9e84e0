package readonly

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/tracing"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/rows"
)

// Codec is a serializer for the lists and events of REST. As JSON of the version
// that is stored it writes them from the stored text, so that nothing is decoded
// and encoded again; a list is read while it is written. Everything else it
// leaves to the serializer that it wraps: other media types, pretty JSON, and
// objects of other types. What it writes is what that one would have written.
type Codec struct{ runtime.NegotiatedSerializer }

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (c Codec) EncoderForVersion(serializer runtime.Encoder, version runtime.GroupVersioner) runtime.Encoder {
	e := encoder{plain: c.NegotiatedSerializer.EncoderForVersion(serializer, version)}
	e.identifier = e.plain.Identifier()
	info, ok := runtime.SerializerInfoForMediaType(c.SupportedMediaTypes(), runtime.ContentTypeJSON)
	// A request for pretty JSON comes with another serializer.
	if ok && info.Serializer == serializer && version == runtime.GroupVersioner(v1alpha1.SchemeGroupVersion) {
		e.splices = true
		e.identifier = splicedPrefix + e.identifier
	}
	return e
}

// splicedPrefix begins the identifiers of encoders that know what to do with a
// storedObject.
const splicedPrefix = "stored,"

// encoder encodes for one media type and version.
type encoder struct {
	plain      runtime.Encoder
	identifier runtime.Identifier
	// splices is true if the stored text is in the encoding and version wanted.
	splices bool
}

// Identifier implements runtime.Encoder.
func (e encoder) Identifier() runtime.Identifier { return e.identifier }

// Encode implements runtime.Encoder.
func (e encoder) Encode(object runtime.Object, w io.Writer) error {
	switch o := object.(type) {
	case *stream:
		if e.splices {
			return e.encodeStream(o, w)
		}
		list, err := o.decode()
		if err != nil {
			return err
		}
		return e.plain.Encode(list, w)
	case *storedObject:
		return e.encodeObject(o, w)
	}
	return e.plain.Encode(object, w)
}

func (e encoder) encodeObject(o *storedObject, w io.Writer) error {
	if e.splices && rows.IsVersion(o.row, v1alpha1.SchemeGroupVersion.String()) {
		if text, ok := rows.AppendJSON(make([]byte, 0, len(o.row.Value)+64), o.row, o.revision); ok {
			_, err := w.Write(append(text, '\n'))
			return err
		}
	}
	object, err := o.decode()
	if err != nil {
		return err
	}
	return e.plain.Encode(object, w)
}

// streamBuffer is how much of a list is written at a time.
const streamBuffer = 32 << 10

const (
	// spanEncode is writing a list while it is read, within upstream's SerializeObject.
	spanEncode = "EncodeList"
	// slowEncoding is after which time the span is logged. A slow client makes it long.
	slowEncoding = 5 * time.Second
)

// beginOfItems and endOfList are around the items of a list.
const (
	beginOfItems = `"items":[`
	endOfList    = "]}\n"
)

// encodeStream writes a list while it reads it. After an error the text lacks its
// end, so that no client takes it for the whole list.
func (e encoder) encodeStream(s *stream, w io.Writer) (err error) {
	ctx, span := tracing.Start(s.ctx, spanEncode, attribute.String("resource", string(s.rest.Table)))
	defer func() {
		span.RecordError(err)
		span.End(slowEncoding)
	}()
	// The plain encoder makes the frame: an empty list.
	var frame bytes.Buffer
	if err := e.plain.Encode(s.list, &frame); err != nil {
		return err
	}
	head, ok := bytes.CutSuffix(frame.Bytes(), []byte(endOfList))
	if !ok || !bytes.HasSuffix(head, []byte(beginOfItems)) {
		return fmt.Errorf("an empty list is encoded as %q, which does not end in %q", frame.Bytes(), beginOfItems+endOfList)
	}
	// k8s.io/apiserver takes a short first write for the beginning of a stream, which
	// it buffers to find out whether it is worth compressing.
	if _, err := w.Write(head[:1]); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, streamBuffer)
	text, separator := head[1:], ""
	err = s.each(ctx, func(row *index.Row) error {
		var err error
		if text, err = s.rest.appendItem(append(text, separator...), row); err != nil {
			return err
		}
		_, err = out.Write(text)
		text, separator = text[:0], ","
		return err
	})
	if err != nil {
		return err
	}
	if _, err := out.Write(append(text, endOfList...)); err != nil {
		return err
	}
	return out.Flush()
}

// streamsKey marks the contexts of requests whose lists may be streamed.
type streamsKey struct{}

// WithStreams lets REST answer lists with streams, which only Codec can encode. Of
// requests for another kind, such as Table, k8s.io/apiserver wants the items before
// it encodes; they are left alone.
func WithStreams(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.Contains(strings.ToLower(req.Header.Get("Accept")), "as") {
			req = req.WithContext(context.WithValue(req.Context(), streamsKey{}, true))
		}
		handler.ServeHTTP(w, req)
	})
}

func mayStream(ctx context.Context) bool {
	may, _ := ctx.Value(streamsKey{}).(bool)
	return may
}

var (
	_ runtime.NegotiatedSerializer = Codec{}
	_ runtime.Encoder              = encoder{}
)
