// Command policy-apiserver audits a cluster, or a directory of manifests, against
// its policies and serves the findings as Kubernetes API resources.
package main

import (
	"fmt"
	"os"

	"policy.example.io/policy-apiserver/cmd/policy-apiserver/app"
)

func main() {
	cmd, err := app.NewCommand()
	if err != nil {
		fmt.Fprintln(os.Stderr, "policy-apiserver:", err)
		os.Exit(1)
	}
	os.Exit(app.Run(cmd, os.Args[1:]))
}
