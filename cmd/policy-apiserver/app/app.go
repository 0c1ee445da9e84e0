// Package app wires the parts of policy-apiserver together.
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // metrics of the requests to the cluster
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/options"
	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/reviewcmd"
	"policy.example.io/policy-apiserver/pkg/access"
	"policy.example.io/policy-apiserver/pkg/access/rbac"
	"policy.example.io/policy-apiserver/pkg/apiserver"
	"policy.example.io/policy-apiserver/pkg/audit"
	"policy.example.io/policy-apiserver/pkg/constraintcrd"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/policy"
	"policy.example.io/policy-apiserver/pkg/registry/readonly"
	"policy.example.io/policy-apiserver/pkg/registry/review"
	engine "policy.example.io/policy-apiserver/pkg/review"
	"policy.example.io/policy-apiserver/pkg/rows"
	"policy.example.io/policy-apiserver/pkg/source"
	"policy.example.io/policy-apiserver/pkg/source/cluster"
	"policy.example.io/policy-apiserver/pkg/source/directory"
	"policy.example.io/policy-apiserver/pkg/version"
)

// NewCommand returns the command of the server.
func NewCommand() (*cobra.Command, error) {
	opts, err := options.New()
	if err != nil {
		return nil, err
	}
	cmd := &cobra.Command{
		Use:   "policy-apiserver",
		Short: "Audit a cluster or a directory against its policies and serve the findings",
		Long: `policy-apiserver audits the objects of a cluster, or of a directory of manifests,
against the policies that are among them, follows every change, and serves what
it finds as read-only resources of the API group policy.example.io.

policy-apiserver review asks the policies about manifests instead, and ends: see
policy-apiserver review --help.`,
		// Errors are printed once, by the caller, and without the usage text.
		SilenceUsage: true,
		Args:         cobra.NoArgs,
		Version:      version.Get(),
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return compatibility.DefaultComponentGlobalsRegistry.Set()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Complete(); err != nil {
				return err
			}
			if err := opts.Validate(); err != nil {
				return err
			}
			return run(cmd.Context(), opts)
		},
	}
	sets := opts.Flags()
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags()) // opts has those
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	width, _, err := term.TerminalSize(cmd.OutOrStdout())
	if err != nil {
		width = 0 // not a terminal
	}
	cliflag.SetUsageAndHelpFunc(cmd, sets, width)
	cmd.AddCommand(reviewcmd.New())
	cmd.SetContext(genericapiserver.SetupSignalContext())
	return cmd, nil
}

// Run runs the command that the arguments name and returns the exit status.
func Run(cmd *cobra.Command, args []string) int {
	cmd.SetArgs(args)
	if named, _, err := cmd.Find(args); err == nil && named.Name() == reviewcmd.Name {
		return reviewcmd.Run(cmd)
	}
	return cli.Run(cmd)
}

// runnableSource is a source that follows its changes while Run runs.
type runnableSource interface {
	source.Source
	Run(ctx context.Context) error
	Get(ctx context.Context, kind source.Kind, namespace, name string) (*unstructured.Unstructured, error)
	ListPages(ctx context.Context, kind source.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error
}

// run runs the server until ctx is done.
func run(ctx context.Context, opts *options.Options) error {
	logger := klog.FromContext(ctx)
	db, err := openIndex(logger, opts)
	if err != nil {
		return err
	}
	defer func() {
		if err := db.Close(); err != nil {
			logger.Error(err, "Closing the index")
		}
	}()
	if err := db.Recovered(); err != nil {
		logger.Error(err, "The findings are made anew")
	}
	src, ensure, err := newSource(opts)
	if err != nil {
		return err
	}
	changes := feed.New(db)
	auditor, err := audit.New(audit.Config{
		Source: src, Index: db, Workers: opts.Workers, RegoAllowNet: opts.RegoAllowNet, EnsureConstraintKind: ensure,
		SourceID: opts.SourceID(), SweepInterval: opts.SweepInterval, ChangeRetention: opts.ResolvedRetention,
	})
	if err != nil {
		return err
	}
	generic, err := opts.Generic()
	if err != nil {
		return err
	}
	backend := readonly.Backend{Index: db, Feed: changes, Readiness: auditor}
	narrower, err := scopeViews(opts, generic, db, auditor, &backend)
	if err != nil {
		return err
	}
	admission, err := newWebhook(ctx, opts, auditor, src)
	if err != nil {
		return err
	}
	config := apiserver.Config{Generic: generic, Extra: apiserver.ExtraConfig{
		Backend:  backend,
		Reviews:  reviews(opts, auditor, src),
		Observed: db,
		Damaged:  db.Damaged,
	}}
	if admission != nil {
		config.Extra.ReadyzChecks = append(config.Extra.ReadyzChecks, admission.check())
	}
	server, err := config.Complete().New()
	if err != nil {
		return err
	}
	serving := make(chan struct{})
	err = server.Generic.AddPostStartHook("serving", func(genericapiserver.PostStartHookContext) error {
		close(serving)
		return nil
	})
	if err != nil {
		return err
	}
	followers, err := newFollowers(opts, db, changes, auditor)
	if err != nil {
		return err
	}
	logger.Info("Starting policy-apiserver", "version", version.Get(), "source", opts.Source, "dataDir", opts.DataDir)
	return server.Run(ctx, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return src.Run(ctx) })
		group.Go(func() error { return db.Run(ctx) })
		group.Go(func() error { return auditor.Run(ctx) })
		group.Go(func() error { sweepOnSignal(ctx, auditor.Sweep); return nil })
		if admission != nil {
			group.Go(func() error { return admission.run(ctx) })
		}
		for _, follow := range followers {
			group.Go(func() error { follow(ctx); return nil })
		}
		if narrower != nil {
			group.Go(func() error { return narrower.Run(ctx) })
		}
		group.Go(func() error {
			// Not in the hook itself, where an error ends the process on the spot.
			select {
			case <-serving:
				return opts.MaybeWriteKubeconfig()
			case <-ctx.Done():
				return nil
			}
		})
		return group.Wait()
	})
}

// scopeViews has a backend show to each user what they may see, unless --scoped-views
// is false. The narrower that it returns has to be run; nil if there is none.
func scopeViews(opts *options.Options, generic *genericapiserver.RecommendedConfig, db *index.DB, resources access.Resources, backend *readonly.Backend) (*rbac.Narrower, error) {
	if !opts.ScopedViews {
		return nil, nil
	}
	authorizer, ttl, err := opts.ReviewAuthorizer(generic)
	if err != nil {
		return nil, err
	}
	config := access.Config{Index: db, Authorizer: authorizer, Resources: resources, TTL: ttl}
	narrower, err := opts.Narrower()
	if err != nil {
		return nil, err
	}
	if narrower != nil {
		config.Narrower = narrower
	}
	backend.Access, err = access.New(config)
	return narrower, err
}

// reviews is what reviews are answered from.
func reviews(opts *options.Options, auditor *audit.Auditor, src runnableSource) review.Backend {
	_, isDir := opts.Directory()
	backend := review.Backend{
		Policies: func() (engine.Policies, error) {
			policies, err := auditor.Policies()
			if err != nil {
				return nil, err // and not a nil pointer in an interface
			}
			return policies, nil
		},
		Read: func(ctx context.Context, kind policy.Kind, namespace, name string) (*unstructured.Unstructured, error) {
			return src.Get(ctx, source.Kind(kind), namespace, name)
		},
		List: func(ctx context.Context, kind policy.Kind, namespace, selector string, page func([]*unstructured.Unstructured) error) error {
			return src.ListPages(ctx, source.Kind(kind), namespace, selector, page)
		},
		// The authorizer of a server without a cluster knows nothing of anybody else.
		AskAuthorizer: !isDir,
	}
	if isDir {
		backend.GuessKind = func(gvk schema.GroupVersionKind, inNamespace bool) (policy.Kind, bool) {
			kind, known := directory.GuessKind(gvk, inNamespace)
			return policy.Kind(kind), known
		}
	}
	return backend
}

// openIndex opens the index of the data directory and explains what is in the
// way.
func openIndex(logger klog.Logger, opts *options.Options) (*index.DB, error) {
	indexOptions := index.DefaultOptions()
	indexOptions.Dir = opts.DataDir
	indexOptions.Tables = rows.Schemas()
	indexOptions.History = opts.History
	indexOptions.Quota = opts.IndexQuota.Value()
	indexOptions.Warn = func(message string, err error) { logger.Error(err, message) }
	db, err := index.Open(indexOptions)
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, index.ErrLocked):
		return nil, fmt.Errorf("the data directory %s is in use by another process; stop that process, or give this one another --data-dir", opts.DataDir)
	case errors.Is(err, index.ErrNewerFormat):
		return nil, fmt.Errorf("the data directory %s was written by a newer version: %w; use that version, another --data-dir, or delete index.db, which costs a new audit", opts.DataDir, err)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST):
		return nil, fmt.Errorf("the data directory %s cannot be written: %w; make it writable for this user, or give another --data-dir", opts.DataDir, err)
	}
	return nil, fmt.Errorf("open the data directory %s: %w", opts.DataDir, err)
}

// ensureFunc makes the kind of a template's constraints.
type ensureFunc = func(ctx context.Context, template *unstructured.Unstructured) error

func newSource(opts *options.Options) (runnableSource, ensureFunc, error) {
	if path, ok := opts.Directory(); ok {
		src, err := directory.New(path, directory.Options{})
		if err != nil {
			return nil, nil, fmt.Errorf("--source: %w", err)
		}
		return src, nil, nil
	}
	config, err := opts.ClientConfig()
	if err != nil {
		return nil, nil, err
	}
	return newClusterSource(config, cluster.Options{QPS: opts.QPS, Burst: opts.Burst})
}

func newClusterSource(config *rest.Config, opts cluster.Options) (runnableSource, ensureFunc, error) {
	src, err := cluster.New(config, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("source: %w", err)
	}
	ensurer, err := constraintcrd.NewEnsurer(config)
	if err != nil {
		return nil, nil, fmt.Errorf("client for constraint kinds: %w", err)
	}
	return src, ensurer.Ensure, nil
}
