// Command findings prints what a policy-apiserver has found, as kubectl would.
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
)

const tableAccept = "application/json;as=Table;v=v1;g=meta.k8s.io"

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "findings:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string, out io.Writer) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	for _, resource := range []string{"auditresults", "clusterauditresults", "constraintsummaries"} {
		table, err := fetch(ctx, client.RESTClient(), resource)
		if err != nil {
			return fmt.Errorf("get %s: %w", resource, err)
		}
		if err := print(out, resource, table); err != nil {
			return err
		}
	}
	return nil
}

// fetch gets a resource as a table, as soon as the server has it.
func fetch(ctx context.Context, client rest.Interface, resource string) (*metav1.Table, error) {
	for {
		data, err := client.Get().AbsPath("/apis/policy.example.io/v1alpha1", resource).SetHeader("Accept", tableAccept).Do(ctx).Raw()
		if err == nil {
			table := &metav1.Table{}
			return table, json.Unmarshal(data, table)
		}
		if !apierrors.IsServiceUnavailable(err) {
			return nil, err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// print prints the columns of a table that kubectl prints by default, and the
// message.
func print(out io.Writer, resource string, table *metav1.Table) error {
	if len(table.Rows) == 0 {
		_, err := fmt.Fprintf(out, "\nno %s\n", resource)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w)
	var columns []int
	var header []string
	for i, c := range table.ColumnDefinitions {
		if resource != "constraintsummaries" && c.Name == "Name" || c.Priority > 0 && c.Name != "Message" {
			continue
		}
		columns = append(columns, i)
		header = append(header, strings.ToUpper(c.Name))
	}
	namespaced := resource == "auditresults"
	if namespaced {
		header = append([]string{"NAMESPACE"}, header...)
	}
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, row := range table.Rows {
		var cells []string
		if namespaced {
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
