package faults

import (
	"encoding/json"
	"io"
	"log"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// fault is what happens to a request.
type fault string

const (
	noFault     fault = ""
	expired     fault = "410"
	tooMany     fault = "429"
	internal    fault = "500"
	unavailable fault = "503"
	cut         fault = "cut"       // the connection is closed without an answer
	stall       fault = "stall"     // no answer for a while, then none
	truncated   fault = "truncated" // the body ends somewhere
)

// stallTime is how long a stalled request takes.
const stallTime = 2 * time.Second

// proxy leads to a kube-apiserver.
type proxy struct {
	*httptest.Server
	forward *httputil.ReverseProxy

	mu     sync.Mutex
	random *rand.Rand
	off    bool
	counts map[fault]int
}

// newProxy returns a proxy whose faults a seed decides about. Requests come in no certain
// order, so that a seed is no more than a beginning.
func newProxy(target *rest.Config, seed int64) (*proxy, error) {
	quiet := log.New(io.Discard, "", 0) // what breaks is meant to, or seen by the client
	upstream, err := url.Parse(target.Host)
	if err != nil {
		return nil, err
	}
	// The caller's own credentials are sent on.
	transport, err := rest.TransportFor(&rest.Config{Host: target.Host, TLSClientConfig: rest.TLSClientConfig{CAFile: target.CAFile, CAData: target.CAData}})
	if err != nil {
		return nil, err
	}
	p := &proxy{random: rand.New(rand.NewSource(seed)), counts: map[fault]int{}}
	p.forward = &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      quiet,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.Server = httptest.NewUnstartedServer(p)
	p.Server.Config.ErrorLog = quiet
	p.Server.StartTLS() // tokens are sent over TLS only
	return p, nil
}

// end ends all faults.
func (p *proxy) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	// Watches that are under way may still be cut short.
	p.CloseClientConnections()
}

// choose decides about a request, and after how many bytes a truncated body ends.
func (p *proxy) choose(r *http.Request) (fault, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := r.URL.Query()
	isWatch := q.Get("watch") != ""
	isList := !isWatch && q.Get("limit") != ""
	if p.off || r.Method != http.MethodGet || !isWatch && !isList && !strings.HasPrefix(r.URL.Path, "/apis") {
		return noFault, 0
	}
	choices := []fault{tooMany, internal, unavailable, cut, stall, truncated}
	chance := 0.05 // discovery and the like
	if isWatch || isList {
		choices = append(choices, expired)
		chance = 0.3
	}
	if p.random.Float64() >= chance {
		return noFault, 0
	}
	chosen := choices[p.random.Intn(len(choices))]
	p.counts[chosen]++
	return chosen, p.random.Intn(20_000)
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	chosen, bytes := p.choose(r)
	switch chosen {
	case noFault:
		p.forward.ServeHTTP(w, r)
	case truncated:
		p.forward.ServeHTTP(&shortWriter{ResponseWriter: w, left: bytes}, r)
	case cut:
		panic(http.ErrAbortHandler)
	case stall:
		select {
		case <-time.After(stallTime):
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case expired:
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
	case tooMany:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
	case internal:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case unavailable:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The client may be gone, as others are that get less.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "a fault of the test",
	})
}

// shortWriter ends the connection after some bytes.
type shortWriter struct {
	http.ResponseWriter
	left int
}

// Unwrap implements what http.ResponseController looks for.
func (w *shortWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *shortWriter) Write(data []byte) (int, error) {
	if len(data) < w.left {
		w.left -= len(data)
		return w.ResponseWriter.Write(data)
	}
	if _, err := w.ResponseWriter.Write(data[:w.left]); err == nil {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
	panic(http.ErrAbortHandler)
}
