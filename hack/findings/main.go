// Command findings prints what a policy-apiserver has found, much as kubectl
// would, once the first audit has ended, and what that could not look at.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
)

const (
	groupVersion = "/apis/policy.example.io/v1alpha1"
	// accept asks for the columns that kubectl prints.
	accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
	// retry is how often a server that is still auditing is asked.
	retry = 100 * time.Millisecond
	// patience is how long it is waited for without a word.
	patience = time.Second
	// maxProblems is how many problems are printed.
	maxProblems = 20

	summaries = "constraintsummaries"
	runs      = "auditruns"
)

// view is how a resource is printed.
type view struct {
	resource   string
	namespaced bool
	// hidden is the name of a column that is left out.
	hidden string
}

var views = []view{
	{resource: "auditresults", namespaced: true, hidden: "Name"},
	{resource: "clusterauditresults", hidden: "Name"},
	{resource: summaries},
	{resource: runs},
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the server")
	source := flag.String("source", "", "what the server audits, for messages")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *kubeconfig, *source, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "findings:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, source string, out, progress io.Writer) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	for _, v := range views {
		table, err := fetch(ctx, client.RESTClient(), v.resource, progress)
		if err != nil {
			return fmt.Errorf("get %s: %w", v.resource, err)
		}
		if err := v.print(out, table); err != nil {
			return fmt.Errorf("print %s: %w", v.resource, err)
		}
		switch {
		case v.resource == runs && len(table.Rows) > 0:
			if err := printProblems(out, &table.Rows[len(table.Rows)-1]); err != nil {
				return fmt.Errorf("print problems: %w", err)
			}
		case v.resource == summaries && len(table.Rows) == 0:
			fmt.Fprintf(out, "no policies were found in %s; docs/policies.md says what a policy is\n", source)
		}
	}
	return nil
}

// printProblems prints what a run could not look at. Runs are sorted by time.
func printProblems(out io.Writer, row *metav1.TableRow) error {
	var run v1alpha1.AuditRun
	if err := json.Unmarshal(row.Object.Raw, &run); err != nil {
		return err
	}
	problems := v1alpha1.AllProblems(&run)
	if len(problems) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nProblems of %s:\n", run.Name)
	for _, p := range problems[:min(len(problems), maxProblems)] {
		fmt.Fprintf(out, "  %s: %s\n", p.Subject, p.Message)
	}
	if more := len(problems) - maxProblems; more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
	return nil
}

// fetch gets a resource as a table. While the server is not ready to answer, it
// writes what the server is waiting for and asks again.
func fetch(ctx context.Context, client rest.Interface, resource string, progress io.Writer) (*metav1.Table, error) {
	start, said := time.Now(), ""
	for {
		result := client.Get().AbsPath(groupVersion, resource).Param("includeObject", "Object").SetHeader("Accept", accept).MaxRetries(0).Do(ctx)
		err := result.Error() // with the server's message, which that of Raw lacks
		if err == nil {
			data, err := result.Raw()
			if err != nil {
				return nil, err
			}
			table := &metav1.Table{}
			return table, json.Unmarshal(data, table)
		}
		if !apierrors.IsServiceUnavailable(err) {
			return nil, err
		}
		if why := err.Error(); why != said && time.Since(start) > patience {
			said = why
			fmt.Fprintln(progress, said)
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (v view) print(out io.Writer, table *metav1.Table) error {
	if len(table.Rows) == 0 {
		_, err := fmt.Fprintf(out, "\nno %s\n", v.resource)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w)
	var header []string
	if v.namespaced {
		header = append(header, "NAMESPACE")
	}
	var columns []int
	for i, c := range table.ColumnDefinitions {
		if c.Name == v.hidden || c.Priority > 0 {
			continue
		}
		columns = append(columns, i)
		header = append(header, strings.ToUpper(c.Name))
	}
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for i := range table.Rows {
		row := &table.Rows[i]
		var cells []string
		if v.namespaced {
			var meta metav1.PartialObjectMetadata
			if err := json.Unmarshal(row.Object.Raw, &meta); err != nil {
				return err
			}
			cells = append(cells, meta.Namespace)
		}
		for _, i := range columns {
			cells = append(cells, fmt.Sprint(row.Cells[i]))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}
