package rego

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNetwork has programs ask a server. An answer that they do not get is an error of
// the evaluation, unless they want to know of it.
func TestNetwork(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"denied": %q}`, r.URL.Query().Get("image"))
	}))
	defer server.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	program := func(url, more string) string {
		return fmt.Sprintf(`package test
violation[{"msg": msg}] {
  answer := http.send({"method": "GET", "url": concat("", [%q, "?image=", input.review.object.image]), "force_json_decode": true%s})
  msg := sprintf("%%v %%v", [answer.status_code, object.get(answer, ["body", "denied"], "unknown")])
}`, url, more)
	}
	for _, test := range []struct {
		name, rego string
		allow      []string
		want, err  string
	}{
		{"a host", program(server.URL, ""), []string{"example.com", "127.0.0.1"}, "200 busybox", ""},
		{"any host", program(server.URL, ""), []string{AnyHost}, "200 busybox", ""},
		{"another host", program(server.URL, ""), []string{"example.com"}, "", "rego:3:13: eval_builtin_error: http.send: disallowed host: 127.0.0.1"},
		{"no answer", program(gone.URL, ""), []string{AnyHost}, "", "connection refused"},
		{"no answer, of which the program knows", program(gone.URL, `, "raise_error": false`), []string{AnyHost}, "0 unknown", ""},
		{"no such name", "package test\nviolation[{\"msg\": \"found\"}] { net.lookup_ip_addr(input.review.object.host) != set() }", []string{"example.com"}, "", "disallowed host: does-not-exist.invalid"},
		{"other functions may fail", program(server.URL, "") + "\nviolation[{\"msg\": \"odd\"}] { to_number(input.review.object.image) > 0 }", []string{AnyHost}, "200 busybox", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := Compile(Source{Rego: test.rego, AllowNet: test.allow})
			if err != nil {
				t.Fatal(err)
			}
			if !p.Nondeterministic {
				t.Error("what the program says is remembered")
			}
			review := newValue(t, map[string]any{"object": map[string]any{"image": "busybox", "host": "does-not-exist.invalid"}})
			violations, err := p.Eval(t.Context(), review, newValue(t, map[string]any{}), nil)
			var got []string
			for _, v := range violations {
				got = append(got, v.Message)
			}
			var want []string
			if test.want != "" {
				want = []string{test.want}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if message := fmt.Sprint(err); err == nil && test.err != "" || !strings.Contains(message, test.err) || err != nil && test.err == "" {
				t.Errorf("error is %v, want %q", err, test.err)
			}
		})
	}
}
