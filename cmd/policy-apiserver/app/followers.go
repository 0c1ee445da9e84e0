package app

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app/options"
	"policy.example.io/policy-apiserver/pkg/audit"
	"policy.example.io/policy-apiserver/pkg/export"
	"policy.example.io/policy-apiserver/pkg/feed"
	"policy.example.io/policy-apiserver/pkg/index"
	"policy.example.io/policy-apiserver/pkg/kubeevents"
)

// exportToStdout is the value of --export for the standard output.
const exportToStdout = "stdout"

// newFollowers returns what follows the changes of the index besides watches, as the flags
// ask for. Each runs until its context is done.
func newFollowers(opts *options.Options, db *index.DB, changes *feed.Feed, auditor *audit.Auditor) ([]func(context.Context), error) {
	var followers []func(context.Context)
	if opts.Events {
		config, err := opts.ClientConfig()
		if err != nil {
			return nil, err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("make a client for Events: %w", err)
		}
		followers = append(followers, kubeevents.New(db, changes, client.CoreV1()).Run)
	}
	exported := export.Config{Index: db, Feed: changes, Ready: auditor.FirstRun()}
	switch opts.Export {
	case "":
		return followers, nil
	case exportToStdout:
		exported.Out = os.Stdout
		return append(followers, export.New(exported).Run), nil
	}
	file, err := export.OpenFile(opts.Export)
	if err != nil {
		return nil, fmt.Errorf("--export: %w", err)
	}
	exported.Out = file
	return append(followers, func(ctx context.Context) {
		export.New(exported).Run(ctx)
		if err := file.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Closing the file of --export")
		}
	}), nil
}
