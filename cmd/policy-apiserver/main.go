// Command policy-apiserver audits a cluster, or a directory of manifests, against
// its policies and serves the findings as Kubernetes API resources.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewCommand()))
}
