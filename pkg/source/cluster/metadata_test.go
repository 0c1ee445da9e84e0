package cluster

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestStreamOfMetadata: the stream is as any other, with objects that lack their content.
func TestStreamOfMetadata(t *testing.T) {
	for name, noWatchList := range map[string]bool{"streamed list": false, "pages": true} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(t)
			server.partial = true
			server.noWatchList = noWatchList
			server.set("a", "b", "c")
			r := newRecorder(t)
			var objects []*unstructured.Unstructured
			r.onUpsert = func(obj *unstructured.Unstructured) { objects = append(objects, obj) }
			src := server.source(t, nil).Metadata()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); src.Stream(ctx, configMaps, r) }()
			r.waitFor("Listed")
			server.set("d")
			r.waitFor("Upsert d")
			server.remove("b")
			r.waitFor("Delete b")
			cancel()
			<-done
			r.expect("ListStarted", "Upsert a@101", "Upsert b@102", "Upsert c@103", "Listed 103", "Upsert d@104", "Delete b")
			for _, obj := range objects {
				if obj.GetAPIVersion() != "v1" || obj.GetKind() != "ConfigMap" || obj.GetUID() == "" || obj.Object["data"] != nil {
					t.Errorf("an object is %v", obj)
				}
			}
			var listed []string
			version, err := src.List(t.Context(), configMaps, func(obj *unstructured.Unstructured) error {
				listed = append(listed, obj.GetName())
				return nil
			})
			if err != nil || version != "105" || !slices.Equal(listed, []string{"a", "c", "d"}) {
				t.Errorf("listed %v at %s, %v", listed, version, err)
			}
		})
	}
}

// TestListIsPaged and tells of nothing but what was asked for.
func TestListIsPaged(t *testing.T) {
	server := newFakeServer(t)
	server.set("a", "b", "c")
	var listed []string
	version, err := server.source(t, nil).List(t.Context(), configMaps, func(obj *unstructured.Unstructured) error {
		listed = append(listed, obj.GetName())
		return nil
	})
	if err != nil || version != "103" || !slices.Equal(listed, []string{"a", "b", "c"}) {
		t.Errorf("listed %v at %s, %v", listed, version, err)
	}
	if requests := server.seen(isList); len(requests) != 2 || requests[0].Get("limit") != "2" {
		t.Errorf("requests: %v", requests)
	}
}
