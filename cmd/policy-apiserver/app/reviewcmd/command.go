// Package reviewcmd is the command policy-apiserver review: it asks the policies of a
// directory, or of a cluster, about manifests, and tells by its exit status whether
// they comply.
//
// Both ways use the same ReviewSpec. Without a cluster it is answered here, by
// pkg/review; with one it is posted.
package reviewcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/source"
	"policy.example.io/policy-apiserver/pkg/source/directory"
)

// Name of the command.
const Name = "review"

// Exit statuses.
const (
	exitViolations = 1
	exitErrors     = 2
)

// errViolations and errProblems end the command after its report was printed.
var (
	errViolations = errors.New("there are violations")
	errProblems   = errors.New("not everything could be judged")
)

type options struct {
	file, policies, kubeconfig, namespace string
	output, failOn                        string
	point                                 string
	user                                  string
	groups, allowNet                      []string
	explain                               bool
	candidates                            string
	withInstalled                         bool
	kinds, namespaces                     []string
	selector                              string
	limit                                 int
	// set are the flags that were given.
	set func(name string) bool
}

// New returns the command.
func New() *cobra.Command {
	o := &options{output: "table", failOn: "deny", limit: 100}
	cmd := &cobra.Command{
		Use:   Name + " -f FILE|DIR|- (--policies DIR | --kubeconfig FILE)\n  policy-apiserver " + Name + " --candidates FILE|DIR --kubeconfig FILE [-f FILE|DIR|-]",
		Short: "Ask the policies of a directory or a cluster about manifests",
		Long: `Review judges manifests by policies: those of a directory, without a cluster, or
those of the cluster that a kubeconfig leads to, by posting reviews to its
policy-apiserver. Workloads are judged with their Pods.

With --candidates, policies that are not installed judge: the manifests of -f or,
without -f, the objects that exist in the cluster, as far as you may list them. The
latter tells the impact of these policies before they are rolled out.

The exit status is 0 if nothing is found that --fail-on names, 1 if something is,
and 2 if something could not be read or judged.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.set = cmd.Flags().Changed
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	var sets cliflag.NamedFlagSets
	fs := sets.FlagSet(Name)
	fs.StringVarP(&o.file, "filename", "f", o.file, "File or directory of manifests to judge, or - for the standard input.")
	fs.StringVar(&o.policies, "policies", o.policies, "File or directory with the policies, and with the Namespaces and params that they look at. No cluster is needed.")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig of the cluster whose policies are asked.")
	fs.StringVarP(&o.namespace, "namespace", "n", o.namespace, "Post localreviews of this namespace, for users who may review nothing else. With --kubeconfig only.")
	fs.StringVarP(&o.output, "output", "o", o.output, "What to print: "+strings.Join(outputNames(), ", ")+".")
	fs.StringVar(&o.failOn, "fail-on", o.failOn, "The weakest action whose violations make the exit status 1: deny, warn or dryrun. Audit counts as dryrun.")
	fs.StringVar(&o.point, "enforcement-point", o.point, "Judge by the constraints and actions of an enforcement point, such as validation.gatekeeper.sh. All of them if it is not set.")
	fs.StringVar(&o.user, "as", o.user, "User who makes the requests that are judged. With --kubeconfig it takes the right to impersonate them.")
	fs.StringSliceVar(&o.groups, "as-group", o.groups, "Groups of the user of --as.")
	fs.StringSliceVar(&o.allowNet, "rego-allow-net", o.allowNet, "Hosts that policies of --policies in Rego may reach; * is all.")
	fs.BoolVar(&o.explain, "explain", o.explain, "Print all verdicts, also of constraints that do not match, and why they do not.")
	impact := sets.FlagSet("candidates")
	impact.StringVar(&o.candidates, "candidates", o.candidates, "File or directory of policies that are not installed, with their params, to judge by alone. With --kubeconfig only.")
	impact.BoolVar(&o.withInstalled, "with-installed", o.withInstalled, "Judge by the installed policies as well as by --candidates.")
	impact.StringSliceVar(&o.kinds, "scope-kinds", o.kinds, "Kinds of the objects in the cluster, such as Pod,Deployment.apps. Those that the policies select if it is not set.")
	impact.StringSliceVar(&o.namespaces, "scope-namespaces", o.namespaces, "Namespaces of the objects in the cluster. All of them if it is not set.")
	impact.StringVarP(&o.selector, "selector", "l", o.selector, "Label selector of the objects in the cluster.")
	impact.IntVar(&o.limit, "limit", o.limit, "How many findings on objects in the cluster are listed, at most 1000. All are counted.")
	for _, set := range sets.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cliflag.SetUsageAndHelpFunc(cmd, sets, 0)
	return cmd
}

// Run runs the root command, of which New has been called as, and returns the exit
// status.
func Run(root *cobra.Command) int {
	err := cli.RunNoErrOutput(root)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errViolations):
		return exitViolations
	case !errors.Is(err, errProblems): // those are in the report
		fmt.Fprintf(root.ErrOrStderr(), "Error: %v\n", err)
	}
	return exitErrors
}

func (o *options) validate() error {
	var errs []error
	if o.file == "" && o.candidates == "" {
		errs = append(errs, errors.New("-f is missing; give the manifests to judge, or policies with --candidates to judge what is in the cluster"))
	}
	errs = append(errs, o.validateCandidates()...)
	if (o.policies == "") == (o.kubeconfig == "") {
		errs = append(errs, errors.New("give either --policies with a directory, or --kubeconfig of a cluster"))
	}
	if o.namespace != "" && o.kubeconfig == "" {
		errs = append(errs, errors.New("--namespace is for --kubeconfig only"))
	}
	if len(o.groups) > 0 && o.user == "" {
		errs = append(errs, errors.New("--as-group needs --as"))
	}
	if _, ok := outputs[o.output]; !ok {
		errs = append(errs, fmt.Errorf("--output=%s is unknown; use one of %s", o.output, strings.Join(outputNames(), ", ")))
	}
	if _, ok := severities[o.failOn]; !ok || o.failOn == "audit" {
		errs = append(errs, fmt.Errorf("--fail-on=%s is unknown; use deny, warn or dryrun", o.failOn))
	}
	return errors.Join(errs...)
}

func (o *options) validateCandidates() []error {
	var errs []error
	if o.candidates != "" && o.kubeconfig == "" {
		errs = append(errs, errors.New("--candidates is for --kubeconfig only; without a cluster, --policies are not installed anyway"))
	}
	if o.withInstalled && o.candidates == "" {
		errs = append(errs, errors.New("--with-installed is for --candidates only"))
	}
	for _, name := range []string{"scope-kinds", "scope-namespaces", "selector", "limit"} {
		if o.set(name) && (o.candidates == "" || o.file != "") {
			errs = append(errs, fmt.Errorf("--%s is for --candidates without -f: it selects objects in the cluster", name))
		}
	}
	if o.candidates == "" || o.file != "" {
		return errs
	}
	if o.user != "" || o.explain {
		errs = append(errs, errors.New("--as and --explain are for -f: objects in the cluster are judged as the audit does"))
	}
	if _, ok := outputs[o.output]; ok && impactOutputs[o.output] == nil {
		errs = append(errs, fmt.Errorf("--output=%s is for -f: objects in the cluster have no file; use table or json", o.output))
	}
	return errs
}

// run judges and reports.
func (o *options) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	c := &candidates{}
	if o.candidates != "" {
		var err error
		if c, err = readCandidates(ctx, o.candidates); err != nil {
			return err
		}
	}
	if o.file == "" {
		ask, err := newOnline(o.kubeconfig, o.namespace)
		if err != nil {
			return err
		}
		return o.runScope(ctx, ask, c, stdout, stderr)
	}
	src, err := o.source(stdin)
	if err != nil {
		return err
	}
	inventory, err := src.Inventory(ctx)
	if err != nil {
		return err
	}
	manifests, err := src.Manifests()
	if err != nil {
		return err
	}
	for i := range manifests {
		manifests[i].File = o.place(manifests[i].File)
	}
	var ask reviewer
	if o.policies != "" {
		ask, err = newOffline(ctx, o, inventory.Kinds, manifests)
	} else {
		ask, err = newOnline(o.kubeconfig, o.namespace)
	}
	if err != nil {
		return err
	}
	r := &report{failOn: severities[o.failOn], Problems: slices.Concat(texts(inventory.Problems), ask.problems(), c.problems), Notes: c.notes}
	if err := o.review(ctx, ask, manifests, c, r); err != nil {
		return c.explain(err)
	}
	if err := outputs[o.output](stdout, r); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	for _, note := range r.Notes {
		fmt.Fprintln(stderr, "Note:", note)
	}
	for _, problem := range r.Problems {
		fmt.Fprintln(stderr, "Problem:", problem)
	}
	fmt.Fprintln(stderr, r.summary())
	switch {
	case len(r.Problems) > 0 || r.unjudged() > 0:
		return errProblems
	case r.failures() > 0:
		return errViolations
	}
	return nil
}

// source reads what is to be judged.
func (o *options) source(stdin io.Reader) (*directory.Source, error) {
	path := o.file
	if path == "-" {
		dir, err := os.MkdirTemp("", "policy-review-")
		if err != nil {
			return nil, fmt.Errorf("keep the standard input: %w", err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a folder for temporary files is emptied anyway
		data, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read the standard input: %w", err)
		}
		path = filepath.Join(dir, "stdin.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return nil, fmt.Errorf("keep the standard input: %w", err)
		}
	}
	return directory.New(path, directory.Options{})
}

// place is where a file is, seen from where the command runs.
func (o *options) place(file string) string {
	if o.file == "-" {
		return "-"
	}
	return placeIn(o.file, file)
}

// placeIn is where a file of a path is, which is a directory or the file itself.
func placeIn(path, file string) string {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return filepath.ToSlash(path)
	}
	return filepath.ToSlash(filepath.Join(path, file))
}

func texts(problems []source.Problem) []string {
	var out []string
	for _, problem := range problems {
		out = append(out, problem.Subject+": "+problem.Message)
	}
	return out
}

// spec of a review of some manifests.
func (o *options) spec() v1alpha1.ReviewSpec {
	spec := v1alpha1.ReviewSpec{EnforcementPoint: o.point, Explain: o.explain}
	if o.user != "" {
		spec.UserInfo = &v1alpha1.ReviewUser{Username: o.user, Groups: o.groups}
	}
	return spec
}
