// Package options has the flags of policy-apiserver: defaults, validation, and
// how they become the configuration of the server.
package options

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"policy.example.io/policy-apiserver/pkg/audit"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/source/cluster"
)

// Sources that --source names.
const (
	sourceCluster   = "cluster"
	sourceDirPrefix = "dir:"
)

// Values of --scoped-views-narrowing.
const (
	narrowingRBAC = "rbac"
	narrowingNone = "none"
)

// defaultIndexQuota is less than half of the volume of artifacts/deploy, so that there is
// room for a copy, and enough for a million findings.
const defaultIndexQuota = "2Gi"

// Options are the flags of the server.
type Options struct {
	// Source is cluster, or dir: and a path.
	Source string
	// Kubeconfig of the cluster that is audited and that requests are authenticated
	// and authorized with. In-cluster credentials are used if it is empty.
	Kubeconfig string
	// DataDir has the index and, with a directory as source, the certificates.
	DataDir string
	// WriteKubeconfig is where a kubeconfig for this server is written, with a
	// directory as source.
	WriteKubeconfig string
	// History is how long old revisions can be listed and watched from.
	History time.Duration
	// ResolvedRetention is how long it is kept which findings opened and were resolved.
	ResolvedRetention time.Duration
	// IndexQuota is how much the index of findings may have in use; 0 means no limit.
	IndexQuota resource.QuantityValue
	// Workers is the number of objects evaluated at the same time; 0 means one a core.
	Workers int
	// RegoAllowNet are the hosts that policies in Rego may reach, * for all.
	RegoAllowNet []string
	// SweepInterval is the time between sweeps; 0 means none.
	SweepInterval time.Duration
	// QPS and Burst limit the requests of the audit to the cluster.
	QPS   float32
	Burst int
	// Export is where findings are written as JSON lines: stdout, or a file; nowhere if it
	// is empty.
	Export string
	// Events makes Kubernetes Events of findings that open.
	Events bool
	// ScopedViews shows a finding only to who may get its object.
	ScopedViews bool
	// ScopedViewsNarrowing is rbac if only what the cluster's RBAC may grant is asked of
	// its authorizer, none if everything is.
	ScopedViewsNarrowing string
	// Namespace that the server runs in.
	Namespace string
	// Enforcement is the admission webhook.
	Enforcement *EnforcementOptions

	ServerRun      *genericoptions.ServerRunOptions
	SecureServing  *genericoptions.SecureServingOptionsWithLoopback
	Authentication *genericoptions.DelegatingAuthenticationOptions
	Authorization  *genericoptions.DelegatingAuthorizationOptions
	Audit          *genericoptions.AuditOptions
	Features       *genericoptions.FeatureOptions
	Traces         *genericoptions.TracingOptions
	Logs           *logs.Options
}

// New returns the default options. The feature gates of logging join those of the
// process, which k8s.io/apiserver keeps.
func New() (*Options, error) {
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		return nil, fmt.Errorf("register the feature gates of logging: %w", err)
	}
	serving := genericoptions.NewSecureServingOptions()
	serving.BindPort = 6443
	serving.BindAddress = nil // depends on the source
	serving.ServerCert.PairName = "policy-apiserver"
	serving.ServerCert.CertDirectory = ""
	// kube-apiserver multiplexes all watches over few connections.
	serving.HTTP2MaxStreamsPerConnection = 1000
	serverRun := genericoptions.NewServerRunOptions()
	// Without it a server that is to end waits a minute for watches that do not.
	serverRun.ShutdownWatchTerminationGracePeriod = 10 * time.Second
	return &Options{
		Source:               sourceCluster,
		DataDir:              "policy-apiserver-data",
		History:              index.DefaultOptions().History,
		ResolvedRetention:    audit.DefaultChangeRetention,
		IndexQuota:           resource.QuantityValue{Quantity: resource.MustParse(defaultIndexQuota)},
		SweepInterval:        time.Hour,
		QPS:                  cluster.DefaultQPS,
		Burst:                cluster.DefaultBurst,
		ScopedViews:          true,
		ScopedViewsNarrowing: narrowingRBAC,
		Enforcement:          newEnforcementOptions(),
		ServerRun:            serverRun,
		SecureServing:        serving.WithLoopback(),
		Authentication:       genericoptions.NewDelegatingAuthenticationOptions(),
		Authorization:        genericoptions.NewDelegatingAuthorizationOptions(),
		Audit:                genericoptions.NewAuditOptions(),
		Features:             genericoptions.NewFeatureOptions(),
		Traces:               genericoptions.NewTracingOptions(),
		Logs:                 logs.NewOptions(),
	}, nil
}

// Flags returns the flags in named sets.
func (o *Options) Flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets
	fs := sets.FlagSet("policy audit")
	fs.StringVar(&o.Source, "source", o.Source, "What is audited: cluster, or dir:PATH for a directory of manifests, which needs no cluster.")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Kubeconfig of the cluster, for --source=cluster. In-cluster credentials are used if it is not set.")
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "Directory for the index of findings and, for --source=dir, for certificates. It is made if it is missing; deleting it costs a new audit and nothing else.")
	fs.StringVar(&o.WriteKubeconfig, "write-kubeconfig", o.WriteKubeconfig, "File to write a kubeconfig with administrator rights on this server to, once it serves. For --source=dir only.")
	fs.DurationVar(&o.History, "history-window", o.History, "How long old revisions are kept, for the pages of a list and for watches that resume.")
	fs.DurationVar(&o.ResolvedRetention, "resolved-retention", o.ResolvedRetention, "How long auditchanges are kept: which findings opened and were resolved. There are 50000 at most.")
	fs.Var(&o.IndexQuota, "index-quota", "How much of --data-dir the index may have in use, for example 2Gi. When little is left it keeps less history, then no changes, and then no findings that are new, which constraintsummaries say. The volume needs twice as much, because the file is copied to get smaller. 0 means no limit.")
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "Namespace that the server runs in. If it is not set, that of its service account; outside of a cluster policy-system.")
	fs.IntVar(&o.Workers, "audit-workers", o.Workers, "Number of objects that are evaluated at the same time. 0 means one for each core.")
	fs.StringSliceVar(&o.RegoAllowNet, "rego-allow-net", o.RegoAllowNet, "Hosts that policies in Rego may reach with http.send and net.lookup_ip_addr; * is all. Without any, templates that use these functions are rejected.")
	fs.DurationVar(&o.SweepInterval, "sweep-interval", o.SweepInterval, "About how long after a sweep the next one begins. A sweep lists every kind once more, one after the other, to find out whether a change was missed; it evaluates nothing that is unchanged. 0 means none, except on SIGUSR1.")
	fs.Float32Var(&o.QPS, "kube-api-qps", o.QPS, "Requests a second that the audit may make to the cluster, besides watches. For --source=cluster.")
	fs.IntVar(&o.Burst, "kube-api-burst", o.Burst, "Requests that may exceed --kube-api-qps for a moment.")
	fs.StringVar(&o.Export, "export", o.Export, "Where to write findings and their changes as JSON lines, in the schema of Gatekeeper's violation export: stdout, or a file, which is appended to. Nowhere if it is not set.")
	fs.BoolVar(&o.Events, "events", o.Events, "Make Kubernetes Events of findings that open, on the objects that they are about. It takes the right to create and patch events. For --source=cluster only.")
	views := sets.FlagSet("scoped views")
	views.BoolVar(&o.ScopedViews, "scoped-views", o.ScopedViews, "Show a finding only to who may get its object, or auditresults/unscoped. Without it, who may list findings sees all of them.")
	views.StringVar(&o.ScopedViewsNarrowing, "scoped-views-narrowing", o.ScopedViewsNarrowing, "What the cluster's authorizer is asked about who may see what: rbac, only what RoleBindings and ClusterRoleBindings may grant; none, everything, which is for clusters whose users have rights by other means than RBAC and takes a question for each namespace and kind. With --source=dir it is none.")
	o.Enforcement.addFlags(sets.FlagSet("enforcement"))
	serving := sets.FlagSet("secure serving")
	o.SecureServing.AddFlags(serving)
	if port := serving.Lookup("secure-port"); port != nil {
		port.Usage = "The port on which to serve HTTPS with authentication and authorization. 0 picks one that is free."
	}
	o.Authentication.AddFlags(sets.FlagSet("authentication"))
	o.Authorization.AddFlags(sets.FlagSet("authorization"))
	o.Audit.AddFlags(sets.FlagSet("auditing of requests"))
	o.Features.AddFlags(sets.FlagSet("features"))
	traces := sets.FlagSet("traces")
	o.Traces.AddFlags(traces)
	if file := traces.Lookup("tracing-config-file"); file != nil {
		file.Usage = "File with a TracingConfiguration: the OpenTelemetry collector that spans of requests are sent to, and of how many. Without it there are none."
	}
	o.ServerRun.AddUniversalFlags(sets.FlagSet("generic"))
	logsapi.AddFlags(o.Logs, sets.FlagSet("logs"))
	return sets
}

// Directory returns the path of --source=dir:PATH, and whether it is that.
func (o *Options) Directory() (string, bool) {
	return strings.CutPrefix(o.Source, sourceDirPrefix)
}

// SourceID tells the sources of a data directory apart. A cluster may move to another
// address.
func (o *Options) SourceID() string {
	path, ok := o.Directory()
	if !ok {
		return o.Source
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return sourceDirPrefix + path
}

// Complete fills in what depends on other options.
func (o *Options) Complete() error {
	if o.Namespace == "" {
		o.Namespace = ownNamespace(serviceAccountNamespaceFile)
	}
	if _, ok := o.Directory(); ok {
		if len(o.SecureServing.BindAddress) == 0 {
			o.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
		}
		// Priority and fairness is configured by objects of a cluster.
		o.Features.EnablePriorityAndFairness = false
	} else {
		if len(o.SecureServing.BindAddress) == 0 {
			o.SecureServing.BindAddress = net.IPv4zero
		}
		if o.Authentication.RemoteKubeConfigFile == "" {
			o.Authentication.RemoteKubeConfigFile = o.Kubeconfig
		}
		if o.Authorization.RemoteKubeConfigFile == "" {
			o.Authorization.RemoteKubeConfigFile = o.Kubeconfig
		}
	}
	return o.ServerRun.Complete()
}

// Validate returns everything that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	path, isDir := o.Directory()
	switch {
	case isDir && path == "":
		errs = append(errs, errors.New("--source=dir: needs a path behind the colon"))
	case !isDir && o.Source != sourceCluster:
		errs = append(errs, fmt.Errorf("--source=%s is unknown; use cluster, or dir:PATH", o.Source))
	}
	if isDir && o.Kubeconfig != "" {
		errs = append(errs, errors.New("--kubeconfig is for --source=cluster only; a directory needs no cluster"))
	}
	if isDir && o.Events {
		errs = append(errs, errors.New("--events is for --source=cluster only; a directory has nowhere to make Events"))
	}
	if !isDir && o.WriteKubeconfig != "" {
		errs = append(errs, errors.New("--write-kubeconfig is for --source=dir only; with a cluster, use the cluster's kubeconfig and the APIService"))
	}
	if o.DataDir == "" {
		errs = append(errs, errors.New("--data-dir must not be empty"))
	}
	if o.History < 0 {
		errs = append(errs, fmt.Errorf("--history-window=%v must not be negative", o.History))
	}
	if o.IndexQuota.Sign() < 0 {
		errs = append(errs, fmt.Errorf("--index-quota=%s must not be negative; 0 means no limit", o.IndexQuota.String()))
	}
	if o.ResolvedRetention <= 0 {
		errs = append(errs, fmt.Errorf("--resolved-retention=%v must be more than 0", o.ResolvedRetention))
	}
	if o.Workers < 0 {
		errs = append(errs, fmt.Errorf("--audit-workers=%d must not be negative; 0 means one for each core", o.Workers))
	}
	if o.SweepInterval < 0 {
		errs = append(errs, fmt.Errorf("--sweep-interval=%v must not be negative; 0 means no sweeps", o.SweepInterval))
	}
	if o.QPS <= 0 {
		errs = append(errs, fmt.Errorf("--kube-api-qps=%v must be more than 0", o.QPS))
	}
	if o.Burst < 1 {
		errs = append(errs, fmt.Errorf("--kube-api-burst=%d must be at least 1", o.Burst))
	}
	if o.ScopedViewsNarrowing != narrowingRBAC && o.ScopedViewsNarrowing != narrowingNone {
		errs = append(errs, fmt.Errorf("--scoped-views-narrowing=%s is unknown; use %s or %s", o.ScopedViewsNarrowing, narrowingRBAC, narrowingNone))
	}
	errs = append(errs, o.Enforcement.validate()...)
	errs = append(errs, o.ServerRun.Validate()...)
	if port := o.SecureServing.BindPort; port < 0 || port > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port=%d must be between 0 and 65535; 0 picks a port that is free", port))
	} else {
		errs = append(errs, o.SecureServing.Validate()...)
	}
	errs = append(errs, o.Audit.Validate()...)
	errs = append(errs, o.Features.Validate()...)
	errs = append(errs, o.Traces.Validate()...)
	if !isDir {
		errs = append(errs, o.Authentication.Validate()...)
		errs = append(errs, o.Authorization.Validate()...)
	}
	if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
		errs = append(errs, err)
	}
	return utilerrors.NewAggregate(errs)
}
