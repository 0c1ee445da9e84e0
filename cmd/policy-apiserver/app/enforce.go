package app

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/options"
	"policy.example.io/policy-apiserver/pkg/audit"
	"policy.example.io/policy-apiserver/pkg/enforcement"
	"policy.example.io/policy-apiserver/pkg/source"
)

// webhookShutdown is how long requests under way may take when the server ends: longer
// than the API server waits for any.
const webhookShutdown = 35 * time.Second

var namespaceKind = source.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, Resource: "namespaces"}

// webhook is the admission webhook and its port.
type webhook struct {
	*enforcement.Webhook
	serving *genericapiserver.SecureServingInfo
}

// newWebhook opens the port of the admission webhook, unless --enforcement=off: it is nil
// then. ctx is done when the server is to end, which it tells its clients.
func newWebhook(ctx context.Context, opts *options.Options, auditor *audit.Auditor, src runnableSource) (*webhook, error) {
	if !opts.Enforces() {
		return nil, nil
	}
	serving, callers, err := opts.EnforcementServing()
	if err != nil {
		return nil, err
	}
	return &webhook{
		Webhook: enforcement.New(enforcement.Config{
			Policies: func() (enforcement.Policies, error) {
				policies, err := auditor.Policies()
				if err != nil {
					return nil, err // and not a nil pointer in an interface
				}
				return policies, nil
			},
			ReadNamespace: func(ctx context.Context, name string) (*unstructured.Unstructured, error) {
				return src.Get(ctx, namespaceKind, "", name)
			},
			Exempt:   opts.ExemptNamespaces(),
			Callers:  callers,
			Draining: ctx.Done(),
		}),
		serving: serving,
	}, nil
}

// check is part of readyz: nothing is admitted by policies that are not there yet.
func (w *webhook) check() healthz.HealthChecker {
	return healthz.NamedCheck("enforcement-policies", func(*http.Request) error { return w.Ready() })
}

// run serves until ctx is done, and then until the requests under way are answered.
func (w *webhook) run(ctx context.Context) error {
	klog.FromContext(ctx).Info("The admission webhook takes requests", "address", w.serving.Listener.Addr().String(), "path", enforcement.Path)
	stopped, stoppedListening, err := w.serving.Serve(w.Handler(), webhookShutdown, ctx.Done())
	if err != nil {
		return fmt.Errorf("serve the admission webhook: %w", err)
	}
	<-stoppedListening
	<-stopped
	return nil
}
