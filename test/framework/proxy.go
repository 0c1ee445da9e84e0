package framework

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Request is one that went through a Proxy.
type Request struct {
	Time   time.Time
	Method string
	Path   string
	Query  url.Values
	Accept string
	// Status of the answer, 0 until there is one.
	Status int
}

// Watch tells whether the request opens a watch.
func (r *Request) Watch() bool { return r.Query.Get("watch") != "" }

// Write tells whether the request changes something.
func (r *Request) Write() bool { return r.Method != http.MethodGet }

// String is the request as a test shows it.
func (r *Request) String() string {
	return fmt.Sprintf("%s %s?%s", r.Method, r.Path, r.Query.Encode())
}

// Proxy is between a policy-apiserver and the kube-apiserver and takes note of the
// requests. It knows clients by their tokens only.
type Proxy struct {
	// URL of the proxy.
	URL string

	server   *http.Server
	done     chan error
	mu       sync.Mutex // protects the fields below
	requests []*Request
	refuse   func(r *Request, w http.ResponseWriter) bool
}

// StartProxy starts a proxy in front of the kube-apiserver.
func (cp *ControlPlane) StartProxy() (*Proxy, error) {
	cert, key, err := cp.ca.issue("proxy", "proxy", nil, []string{"127.0.0.1", "localhost"})
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(cp.url)
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(cp.Admin)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "https://" + listener.Addr().String(), done: make(chan error, 1)}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true},
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	p.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			request, refuse := p.note(r)
			recorder := &statusRecorder{ResponseWriter: w, set: func(status int) { p.answered(request, status) }}
			if refuse != nil && refuse(request, recorder) {
				return
			}
			forward.ServeHTTP(recorder, r)
		}),
	}
	go func() { p.done <- p.server.ServeTLS(listener, cert, key) }()
	return p, nil
}

func (p *Proxy) note(r *http.Request) (*Request, func(*Request, http.ResponseWriter) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	request := &Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Accept: r.Header.Get("Accept")}
	p.requests = append(p.requests, request)
	return request, p.refuse
}

func (p *Proxy) answered(r *Request, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Status = status
}

// Refuse has refuse answer requests itself: it returns true for those. nil ends that.
func (p *Proxy) Refuse(refuse func(r *Request, w http.ResponseWriter) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Requests returns those that came since a time, without those that matter to who asks
// for findings rather than to the audit.
func (p *Proxy) Requests(since time.Time) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Request
	for _, r := range p.requests {
		if !r.Time.Before(since) && !strings.HasPrefix(r.Path, "/apis/authorization.k8s.io/") && !strings.HasPrefix(r.Path, "/apis/authentication.k8s.io/") {
			out = append(out, *r)
		}
	}
	return out
}

// Stop ends the proxy and all that goes through it.
func (p *Proxy) Stop() error {
	if err := p.server.Close(); err != nil {
		return err
	}
	if err := <-p.done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Kubeconfig writes a kubeconfig that leads a ServiceAccount through the proxy.
func (p *Proxy) Kubeconfig(cp *ControlPlane, name, namespace, account string) (string, error) {
	token, err := cp.Kubectl("", "create", "token", account, "-n", namespace, "--duration=24h")
	if err != nil {
		return "", err
	}
	_, path, err := cp.kubeconfig(p.URL, name, &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)})
	return path, err
}

// statusRecorder tells which status an answer has.
type statusRecorder struct {
	http.ResponseWriter
	set func(status int)
}

// WriteHeader implements http.ResponseWriter.
func (s *statusRecorder) WriteHeader(status int) {
	s.set(status)
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }
