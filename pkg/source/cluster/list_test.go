package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// TestList reads pages, and goes on with what there is by then when a page has expired.
func TestList(t *testing.T) {
	for _, expires := range []bool{false, true} {
		t.Run(fmt.Sprint(expires), func(t *testing.T) {
			server := newFakeServer(t)
			server.set("a", "b", "c", "d", "e")
			src := server.source(t, func(_ *rest.Config, tuning *tuning) { tuning.pageSize = 2 })
			expired := false
			server.onRequest(func(w http.ResponseWriter, q url.Values) bool {
				token := q.Get("continue")
				if !expires || expired || token == "" {
					return false
				}
				expired = true
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusGone)
				fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{"continue":%q},"status":"Failure","reason":"Expired","code":410}`, token)
				return true
			})
			var pages []string
			err := src.ListPages(t.Context(), configMaps, "", "", func(objects []*unstructured.Unstructured) error {
				var names []string
				for _, obj := range objects {
					if obj.GetKind() != "ConfigMap" || obj.GetAPIVersion() != "v1" {
						t.Errorf("%s is a %s %s", obj.GetName(), obj.GetAPIVersion(), obj.GetKind())
					}
					names = append(names, obj.GetName())
				}
				pages = append(pages, strings.Join(names, " "))
				return nil
			})
			if diff := cmp.Diff([]string{"a b", "c d", "e"}, pages); diff != "" || err != nil || expired != expires {
				t.Errorf("%v, expired %v (-want +got):\n%s", err, expired, diff)
			}
			if err := src.ListPages(t.Context(), configMaps, "", "", func([]*unstructured.Unstructured) error { return http.ErrAbortHandler }); !errors.Is(err, http.ErrAbortHandler) {
				t.Errorf("the error of a page: %v", err)
			}
			if limits := server.seen(func(q url.Values) bool { return q.Get("limit") != "2" }); len(limits) > 0 {
				t.Errorf("requests without the limit: %v", slices.Clone(limits))
			}
		})
	}
}
