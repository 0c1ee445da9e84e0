package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client/drivers"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client/drivers/rego"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client/reviews"
	"github.com/open-policy-agent/frameworks/constraint/pkg/types"
	"github.com/open-policy-agent/gatekeeper/v3/apis/expansion/unversioned"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/expansion"
	mutationtypes "github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/types"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/target"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/util"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// pageSize is how many objects Gatekeeper's audit lists at once, by default.
const pageSize = 500

// Audit is Gatekeeper's engine with policies. It is used by one goroutine.
type Audit struct {
	client     *client.Client
	expansions *expansion.System
	namespaces map[string]*corev1.Namespace
}

// New returns an engine without policies. The drivers come before the Rego driver.
func New(first ...drivers.Driver) (*Audit, error) {
	// As the charts have it.
	driver, err := rego.New(rego.DisableBuiltins("http.send"), rego.Externs("inventory"))
	if err != nil {
		return nil, fmt.Errorf("rego driver: %w", err)
	}
	options := []client.Opt{client.Targets(&target.K8sValidationTarget{})}
	for _, d := range append(first, driver) {
		options = append(options, client.Driver(d))
	}
	options = append(options, client.EnforcementPoints(util.AuditEnforcementPoint))
	c, err := client.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	// Without mutators, of which this project knows nothing.
	return &Audit{client: c, expansions: expansion.NewSystem(nil), namespaces: map[string]*corev1.Namespace{}}, nil
}

// AddTemplate adds a ConstraintTemplate. The error is the one that Gatekeeper puts
// into the status.
func (a *Audit) AddTemplate(ctx context.Context, obj *unstructured.Unstructured) error {
	template, err := readTemplate(obj)
	if err != nil {
		return err
	}
	_, err = a.client.AddTemplate(ctx, template)
	return err
}

// AddConstraint adds a constraint.
func (a *Audit) AddConstraint(ctx context.Context, obj *unstructured.Unstructured) error {
	_, err := a.client.AddConstraint(ctx, obj.DeepCopy())
	return err
}

// AddInventory adds an object to data.inventory, as a sync does.
func (a *Audit) AddInventory(ctx context.Context, obj *unstructured.Unstructured) error {
	_, err := a.client.AddData(ctx, obj.DeepCopy())
	return err
}

// AddExpansion adds an ExpansionTemplate.
func (a *Audit) AddExpansion(obj *unstructured.Unstructured) error {
	// All versions have the same fields.
	template := &unversioned.ExpansionTemplate{}
	data, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, template); err != nil {
		return fmt.Errorf("expansion template %s: %w", obj.GetName(), err)
	}
	return a.expansions.UpsertTemplate(template)
}

// ExpansionConflicts returns the names of ExpansionTemplates that are not used because
// they are in a circle, which may have become so after they were added.
func (a *Audit) ExpansionConflicts() []string {
	var names []string
	for id := range a.expansions.GetConflicts() {
		names = append(names, string(id))
	}
	return names
}

// AddNamespace makes a Namespace known to Run, as the audit's lookups do.
func (a *Audit) AddNamespace(obj *unstructured.Unstructured) error {
	namespace, err := typedNamespace(obj)
	if err != nil {
		return err
	}
	a.namespaces[namespace.Name] = namespace
	return nil
}

// typedNamespace reads a Namespace as the audit's client does, which leaves
// apiVersion and kind empty.
func typedNamespace(obj *unstructured.Unstructured) (*corev1.Namespace, error) {
	namespace := &corev1.Namespace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, namespace); err != nil {
		return nil, fmt.Errorf("namespace %s: %w", obj.GetName(), err)
	}
	namespace.TypeMeta = metav1.TypeMeta{}
	return namespace, nil
}

// Review judges one object that has come out of the page cache, and its resultants. An
// error costs all results, but for that of a resultant's review.
func (a *Audit) Review(ctx context.Context, obj *unstructured.Unstructured, namespace *corev1.Namespace) ([]*types.Result, error) {
	responses, err := a.review(ctx, obj, namespace, mutationtypes.SourceTypeOriginal)
	if err != nil {
		return nil, err
	}
	resultants, err := a.expansions.Expand(&mutationtypes.Mutable{Object: obj, Namespace: namespace, Source: mutationtypes.SourceTypeOriginal})
	if err != nil {
		return nil, fmt.Errorf("expand: %w", err)
	}
	for _, r := range resultants {
		made, err := a.review(ctx, r.Obj, namespace, mutationtypes.SourceTypeGenerated)
		if err != nil {
			continue // the audit logs it
		}
		expansion.OverrideEnforcementAction(r.EnforcementAction, made)
		expansion.AggregateResponses(r.TemplateName, responses, made)
	}
	return responses.Results(), nil
}

// review judges one object by itself.
func (a *Audit) review(ctx context.Context, obj *unstructured.Unstructured, namespace *corev1.Namespace, source mutationtypes.SourceType) (*types.Responses, error) {
	options := []reviews.ReviewOpt{
		reviews.EnforcementPoint(util.AuditEnforcementPoint),
		reviews.Stats(false),
	}
	if option := util.NamespaceReviewOpt(namespace, logr.Discard()); option != nil {
		options = append(options, option)
	}
	return a.client.Review(ctx, target.AugmentedUnstructured{Object: *obj, Namespace: namespace, Source: source}, options...)
}

// Run audits objects, kind by kind, through files in a directory, which has to
// exist. It calls visit for each object. An error stops the run.
func (a *Audit) Run(ctx context.Context, directory string, objects []*unstructured.Unstructured, visit func(*unstructured.Unstructured, []*types.Result)) error {
	var kinds []string
	byKind := map[string][]*unstructured.Unstructured{}
	for _, obj := range objects {
		key := obj.GetAPIVersion() + " " + obj.GetKind()
		if byKind[key] == nil {
			kinds = append(kinds, key)
		}
		byKind[key] = append(byKind[key], obj)
	}
	for _, kind := range kinds {
		if err := a.runKind(ctx, directory, byKind[kind], visit); err != nil {
			return err
		}
	}
	return nil
}

// runKind writes all pages of a kind and then reads and reviews them.
func (a *Audit) runKind(ctx context.Context, directory string, objects []*unstructured.Unstructured, visit func(*unstructured.Unstructured, []*types.Result)) error {
	var pages []string
	defer func() {
		for _, page := range pages {
			os.RemoveAll(page)
		}
	}()
	for page := range slices.Chunk(objects, pageSize) {
		path := filepath.Join(directory, fmt.Sprintf("%s_%d", page[0].GetKind(), len(pages)))
		if err := os.Mkdir(path, 0o750); err != nil {
			return err
		}
		pages = append(pages, path)
		for i, obj := range page {
			data, err := obj.MarshalJSON()
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(path, strconv.Itoa(i)), data, 0o600); err != nil {
				return err
			}
		}
	}
	for _, page := range pages {
		files, err := os.ReadDir(page)
		if err != nil {
			return err
		}
		for _, file := range files {
			data, err := os.ReadFile(filepath.Join(page, file.Name()))
			if err != nil {
				return err
			}
			obj := &unstructured.Unstructured{}
			if err := json.Unmarshal(data, obj); err != nil {
				return err
			}
			results, err := a.Review(ctx, obj, a.namespaces[obj.GetNamespace()])
			if err != nil {
				return fmt.Errorf("%s %s/%s: %w", obj.GetKind(), obj.GetNamespace(), obj.GetName(), err)
			}
			visit(obj, results)
		}
	}
	return nil
}
