package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// proxy leads to the kube-apiserver and counts.
type proxy struct {
	*httptest.Server
	forward         *httputil.ReverseProxy
	requests, bytes atomic.Int64
}

func newProxy(target *rest.Config) (*proxy, error) {
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
	p := &proxy{}
	p.forward = &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      quiet,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
	}
	p.Server = httptest.NewUnstartedServer(p)
	p.Server.EnableHTTP2 = true
	p.Server.Config.ErrorLog = quiet
	p.Server.StartTLS() // tokens are sent over TLS only
	return p, nil
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	p.forward.ServeHTTP(&countingWriter{w, p}, r)
}

type countingWriter struct {
	http.ResponseWriter
	proxy *proxy
}

// Unwrap implements what http.ResponseController looks for.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *countingWriter) Write(data []byte) (int, error) {
	w.proxy.bytes.Add(int64(len(data)))
	return w.ResponseWriter.Write(data)
}
