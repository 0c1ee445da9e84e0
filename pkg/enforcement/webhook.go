package enforcement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/pkg/policy"
)

// Path is where admission reviews are posted. It is that of Gatekeeper's webhook.
const Path = "/v1/admit"

const (
	// defaultTimeout is the kube-apiserver's for webhooks, maxTimeout the longest that it
	// allows.
	defaultTimeout = 10 * time.Second
	maxTimeout     = 30 * time.Second
	// answerShare of the time of a request is left for the way back of the answer.
	answerShare = 20
)

// Policies is what requests are judged by: a snapshot that does not change meanwhile.
type Policies interface {
	Set() *policy.Set
	// Namespace returns a Namespace, nil if it is not known. It is not modified.
	Namespace(name string) *unstructured.Unstructured
}

// Config of a Webhook.
type Config struct {
	// Policies returns what requests are judged by, or what that waits for.
	Policies func() (Policies, error)
	// ReadNamespace returns a Namespace that Policies do not know, because it is new. The
	// error is one of the API.
	ReadNamespace func(ctx context.Context, name string) (*unstructured.Unstructured, error)
	// Exempt are patterns of namespaces, with an asterisk in front, behind or both, in
	// which nothing is judged. A Namespace counts by its name.
	Exempt []string
	// Callers authenticates those who may call; nil lets everyone.
	Callers authenticator.Request
	// Workers is how many requests are judged at the same time. 0 means one for each core.
	Workers int
	// Draining is closed when the server is about to end. From then on each connection is
	// closed with its next answer, so that none is in use when the server ends.
	Draining <-chan struct{}
}

// Webhook answers admission reviews.
type Webhook struct {
	config  Config
	metrics *webhookMetrics
	workers chan struct{}
	// enforced is of the set that was asked for last.
	enforced atomic.Pointer[enforced]
}

// enforced are the constraints of a set that are enforced at this point.
type enforced struct {
	set         *policy.Set
	constraints []*policy.Constraint
}

// New returns a webhook.
func New(config Config) *Webhook {
	if config.Workers <= 0 {
		config.Workers = runtime.GOMAXPROCS(0)
	}
	return &Webhook{config: config, metrics: processMetrics(), workers: make(chan struct{}, config.Workers)}
}

// Handler returns the handler of the webhook's server.
func (w *Webhook) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(Path, w)
	mux.HandleFunc("/", func(out http.ResponseWriter, r *http.Request) {
		w.fail(out, r, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, resource, "",
			"there is nothing at "+r.URL.Path+"; admission reviews are posted to "+Path, 0, true))
	})
	return mux
}

// Ready returns what has to be loaded before requests are judged, nil if nothing has.
func (w *Webhook) Ready() error {
	_, err := w.config.Policies()
	return err
}

// ServeHTTP implements http.Handler: it answers one admission review.
func (w *Webhook) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	started := time.Now()
	operation, result := "", resultFailed
	defer func() {
		if cause := recover(); cause != nil {
			// The request is not judged, and the next one may be another.
			klog.FromContext(r.Context()).Error(nil, "Judging an admission request panicked", "cause", cause)
			w.fail(out, r, apierrors.NewInternalError(errors.New("judging the request panicked")))
		}
		w.metrics.answered(operation, result, time.Since(started))
	}()
	if w.config.Callers != nil {
		if _, ok, err := w.config.Callers.AuthenticateRequest(r); !ok {
			text := "a client certificate of --enforcement-client-ca-file is needed"
			if err != nil {
				text += ": " + err.Error()
			}
			w.fail(out, r, apierrors.NewUnauthorized(text))
			return
		}
	}
	timeout, err := timeoutOf(r)
	if err != nil {
		w.fail(out, r, err)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), timeout-timeout/answerShare, fmt.Errorf("the %v of the request are over", timeout))
	defer cancel()
	// A body that does not arrive holds nothing up. Test recorders have no connection.
	if err := http.NewResponseController(out).SetReadDeadline(started.Add(timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		w.fail(out, r, apierrors.NewInternalError(err))
		return
	}
	request, err := decode(out, r)
	if err != nil {
		w.fail(out, r, err)
		return
	}
	operation = string(request.Operation)
	response, result, err := w.answer(ctx, request)
	if err != nil {
		result = resultFailed
		w.fail(out, r, err)
		return
	}
	response.UID = request.UID
	w.write(out, r, http.StatusOK, &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: reviewKind},
		Response: response,
	})
}

// timeoutOf returns how long the API server waits for the answer.
func timeoutOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("timeout")
	if text == "" {
		return defaultTimeout, nil
	}
	timeout, err := time.ParseDuration(text)
	if err != nil || timeout <= 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("the query parameter timeout is %q; it has to be a duration above 0, such as 10s", text))
	}
	return min(timeout, maxTimeout), nil
}

// fail answers with a status. The failurePolicy of the webhook decides then.
func (w *Webhook) fail(out http.ResponseWriter, r *http.Request, err error) {
	var status metav1.Status
	var api apierrors.APIStatus
	if errors.As(err, &api) {
		status = api.Status()
	} else {
		status = apierrors.NewInternalError(err).Status()
	}
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	klog.FromContext(r.Context()).V(2).Info("An admission review is not answered", "code", status.Code, "reason", status.Message)
	w.write(out, r, int(status.Code), &status)
}

func (w *Webhook) write(out http.ResponseWriter, r *http.Request, code int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		klog.FromContext(r.Context()).Error(err, "Encoding the answer to an admission review")
		out.WriteHeader(http.StatusInternalServerError)
		return
	}
	select {
	case <-w.config.Draining:
		out.Header().Set("Connection", "close")
	default:
	}
	out.Header().Set("Content-Type", "application/json")
	out.Header().Set("Content-Length", strconv.Itoa(len(data)))
	out.WriteHeader(code)
	if _, err := out.Write(data); err != nil {
		klog.FromContext(r.Context()).V(2).Info("The answer to an admission review was not taken", "err", err)
	}
}
