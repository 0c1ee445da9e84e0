package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"policy.example.io/policy-apiserver/test/differential/corpus"
	"policy.example.io/policy-apiserver/test/framework"
)

// cluster is what is audited.
type cluster struct {
	*framework.ControlPlane
	settings
	server *framework.Server
	// gatekeeper is the path of its manager, and token what it authenticates with.
	gatekeeper, token string

	objects map[string]*unstructured.Unstructured // by their keys in etcd
	keys    []string
	pods    []string
	labels  []string // keys of objects whose labels can be changed
	version int
	probes  map[string]time.Time // when they were written
}

// probeConstraint is violated by each probe, of which one is written a second.
const (
	probeConstraint = "probes"
	probeNamespace  = "default"
)

const probeManifest = `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: RequiredLabels
metadata: {name: probes}
spec:
  match: {kinds: [{apiGroups: [""], kinds: [ConfigMap]}], namespaces: [default], name: "probe-*"}
  parameters: {labels: [{key: probed}]}
`

// prefixes of the keys of etcd, by kind.
var prefixes = map[string]string{
	"Namespace": "namespaces", "Pod": "pods", "Deployment": "deployments", "ReplicaSet": "replicasets", "Service": "services/specs",
	"ConfigMap": "configmaps", "Ingress": "ingress", "Role": "roles", "RoleBinding": "rolebindings",
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
}

// gatekeeperModule is the module that Gatekeeper is built from.
func gatekeeperModule() string {
	return filepath.Join(filepath.Dir(framework.DeployDir()), "..", "test", "gatekeeper")
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// install builds both and installs policies, for which Gatekeeper makes the kinds.
func (c *cluster) install(ctx context.Context, policies *corpus.Policies) error {
	var err error
	if c.server, err = c.InstallServer(ctx); err != nil {
		return err
	}
	c.gatekeeper = filepath.Join(c.Dir, "gatekeeper")
	progress("building Gatekeeper")
	if _, err := goCommand(ctx, gatekeeperModule(), "build", "-trimpath", "-buildvcs=false", "-o", c.gatekeeper, "github.com/open-policy-agent/gatekeeper/v3"); err != nil {
		return err
	}
	source, err := goCommand(ctx, gatekeeperModule(), "list", "-m", "-f", "{{.Dir}}", "github.com/open-policy-agent/gatekeeper/v3")
	if err != nil {
		return err
	}
	if _, err := c.Kubectl("", "apply", "--server-side", "--force-conflicts", "-f", filepath.Join(source, "charts", "gatekeeper", "crds")); err != nil {
		return err
	}
	if _, err := c.Kubectl(gatekeeperManifests, "apply", "-f", "-"); err != nil {
		return err
	}
	if c.token, err = c.Kubectl("", "create", "token", "gatekeeper-admin", "-n", "gatekeeper-system", "--duration=24h"); err != nil {
		return err
	}
	for _, template := range policies.Templates {
		if err := c.apply(template); err != nil {
			return err
		}
	}
	maker := &gatekeeper{cluster: c}
	proxy, err := newProxy(c.Admin)
	if err != nil {
		return err
	}
	defer proxy.Close()
	if _, err := maker.start(ctx, proxy); err != nil {
		return err
	}
	defer maker.stop()
	for _, constraint := range policies.Constraints {
		if err := c.applyWhenThere(ctx, constraint); err != nil {
			return err
		}
	}
	_, err = c.Kubectl(probeManifest, "apply", "-f", "-")
	return err
}

func (c *cluster) apply(obj *unstructured.Unstructured) error {
	data, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = c.Kubectl(string(data), "apply", "-f", "-")
	return err
}

// applyWhenThere applies a constraint once its kind is there.
func (c *cluster) applyWhenThere(ctx context.Context, obj *unstructured.Unstructured) error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := c.apply(obj)
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Second)
	}
}

// load writes the objects.
func (c *cluster) load() error {
	c.objects = map[string]*unstructured.Unstructured{}
	// Of every ten objects of the corpus about four are Pods again.
	for n := c.settings.objects; len(c.keys) < c.settings.objects; n *= 2 {
		made, err := corpus.Cluster(1, n)
		if err != nil {
			return err
		}
		c.keys = nil
		clear(c.objects)
		for _, namespace := range made.Namespaces {
			if err := c.add(namespace); err != nil {
				return err
			}
		}
		for _, obj := range made.Items {
			if err := c.add(obj); err != nil {
				return err
			}
		}
	}
	var entries []framework.EtcdEntry
	for _, key := range c.keys {
		obj := c.objects[key]
		switch obj.GetKind() {
		case "Pod":
			c.pods = append(c.pods, key)
			fallthrough
		case "Deployment", "Service", "Ingress", "ConfigMap":
			c.labels = append(c.labels, key)
		}
		entry, err := entryOf(key, obj)
		if err != nil {
			return err
		}
		if entries = append(entries, entry); len(entries) == 100 {
			if err := c.EtcdPut(entries); err != nil {
				return err
			}
			entries = entries[:0]
		}
	}
	return c.EtcdPut(entries)
}

// add takes an object up, or the newer version of one.
func (c *cluster) add(obj *unstructured.Unstructured) error {
	prefix, ok := prefixes[obj.GetKind()]
	if !ok {
		return fmt.Errorf("the key of a %s is not known", obj.GetKind())
	}
	key := "/registry/" + prefix + "/"
	if obj.GetNamespace() != "" {
		key += obj.GetNamespace() + "/"
	}
	key += obj.GetName()
	obj = obj.DeepCopy()
	obj.SetResourceVersion("")
	if obj.GetUID() == "" {
		obj.SetUID(types.UID("uid-of-" + strconv.Itoa(len(c.keys))))
	}
	if _, ok := c.objects[key]; !ok {
		if len(c.keys) == c.settings.objects {
			return nil
		}
		c.keys = append(c.keys, key)
	}
	c.objects[key] = obj
	return nil
}

func entryOf(key string, obj *unstructured.Unstructured) (framework.EtcdEntry, error) {
	data, err := json.Marshal(obj.Object)
	return framework.EtcdEntry{Key: key, Value: data}, err
}

// changes makes the changes of a second: objects get another label, Pods another status.
func (c *cluster) changes(random *rand.Rand) error {
	var entries []framework.EtcdEntry
	change := func(keys []string, percent float64, fn func(obj *unstructured.Unstructured) error) error {
		perSecond := float64(len(keys)) * percent / 100 / 60
		n := int(perSecond)
		if random.Float64() < perSecond-float64(n) {
			n++
		}
		for range n {
			key := keys[random.IntN(len(keys))]
			obj := c.objects[key]
			c.version++
			if err := fn(obj); err != nil {
				return err
			}
			entry, err := entryOf(key, obj)
			if err != nil {
				return err
			}
			entries = append(entries, entry)
		}
		return nil
	}
	err := change(c.labels, c.changed*float64(len(c.keys))/float64(len(c.labels)), func(obj *unstructured.Unstructured) error {
		all := obj.GetLabels()
		if all == nil {
			all = map[string]string{}
		}
		all["app.kubernetes.io/version"] = "v" + strconv.Itoa(c.version)
		obj.SetLabels(all)
		return nil
	})
	if err == nil {
		err = change(c.pods, c.settings.pods, func(obj *unstructured.Unstructured) error {
			return unstructured.SetNestedField(obj.Object, "heartbeat "+strconv.Itoa(c.version), "status", "message")
		})
	}
	if err == nil {
		c.version++
		name := fmt.Sprintf("probe-%d", c.version)
		probe := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
		probe.SetName(name)
		probe.SetNamespace(probeNamespace)
		probe.SetUID(types.UID("uid-of-" + name))
		var entry framework.EtcdEntry
		entry, err = entryOf("/registry/configmaps/"+probeNamespace+"/"+name, probe)
		entries = append(entries, entry)
		c.probes[name] = time.Now()
	}
	for len(entries) > 0 && err == nil {
		n := min(len(entries), 100)
		err = c.EtcdPut(entries[:n])
		entries = entries[n:]
	}
	return err
}
