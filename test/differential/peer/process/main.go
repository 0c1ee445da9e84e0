// Command process answers questions to Gatekeeper's engine: one JSON document
// each, from stdin to stdout.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/drivers/k8scel"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"policy.example.io/policy-apiserver/test/differential/peer"
)

func main() {
	log.SetLogger(logr.Discard())
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q peer.Question
		if err := questions.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		// As Gatekeeper has it by default: CEL before Rego.
		driver, err := k8scel.New()
		if err != nil {
			return err
		}
		answer, err := peer.Evaluate(ctx, &q, driver)
		if err != nil {
			return err
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}
