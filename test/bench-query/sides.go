package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/test/framework"
)

// Who is compared, as the table names them.
const (
	peerName       = "custom resources"
	aggregatedName = "this server"
	directName     = "this server, directly"
)

// side is one of those who are compared.
type side struct {
	name     string
	config   *rest.Config
	resource schema.GroupVersionResource
	http     *http.Client
	dynamic  dynamic.Interface
	// write changes findings and returns when that is done.
	write func(ctx context.Context, numbers []int) error
	// pids of the servers that answer.
	pids []int
	// tokens lead to the pages of 500, which findTokens finds.
	tokens     []string
	findTokens func(context.Context, *side, corpus) error
}

func newSide(name string, config *rest.Config, resource schema.GroupVersionResource, write func(context.Context, []int) error, pids ...int) (*side, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	// What is compared is not how fast gzip is.
	config.DisableCompression = true
	s := &side{name: name, config: config, resource: resource, write: write, pids: pids, findTokens: walk}
	var err error
	if s.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	s.dynamic, err = dynamic.NewForConfig(config)
	return s, err
}

// path of the resource, in a namespace if that is not empty.
func (s *side) path(namespace, rest string) string {
	path := s.config.Host + "/apis/" + s.resource.Group + "/" + s.resource.Version
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + s.resource.Resource + rest
}

// open sends a request and returns the body of its answer.
func (s *side) open(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := s.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return nil, fmt.Errorf("%s: %s: %.300s", url, response.Status, body)
	}
	return response.Body, nil
}

// The custom resources of the peer.
const (
	peerGroup = "bench.example.io"
	etcdBatch = 100
)

var peerResource = schema.GroupVersionResource{Group: peerGroup, Version: "v1alpha1", Resource: "auditresults"}

// peerDefinition asks the kube-apiserver for as little as it can be asked for: what
// is not selected by is not validated.
const peerDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: auditresults.` + peerGroup + `}
spec:
  group: ` + peerGroup + `
  names: {kind: AuditResult, plural: auditresults, singular: auditresult}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    selectableFields: [{jsonPath: .owner.name}, {jsonPath: .resource.name}]
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
        properties:
          owner: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {name: {type: string}}}
          resource: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {name: {type: string}}}
`

// loadPeer writes the custom resources into etcd, past the kube-apiserver, whose
// answers do not depend on who has written.
func loadPeer(ctx context.Context, cp *framework.ControlPlane, c corpus) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for from := 0; from < c.objects && ctx.Err() == nil; from += etcdBatch {
		group.Go(func() error {
			var entries []framework.EtcdEntry
			for i := from; i < min(from+etcdBatch, c.objects); i++ {
				value, err := c.peerObject(i)
				if err != nil {
					return err
				}
				entries = append(entries, framework.EtcdEntry{Key: fmt.Sprintf("/registry/%s/auditresults/%s/finding-%07d", peerGroup, c.namespace(i), i), Value: value})
			}
			return cp.EtcdPut(entries)
		})
	}
	return group.Wait()
}

// newPeer defines the custom resource and waits until the kube-apiserver answers.
func newPeer(ctx context.Context, cp *framework.ControlPlane, c corpus) (*side, error) {
	for i := 0; i < c.changing(); i += 1 {
		if i > 0 && c.namespace(i) == c.namespace(i-1) {
			continue
		}
		// Nothing can be changed in a namespace that is not there.
		if _, err := cp.Kubectl("", "create", "namespace", c.namespace(i)); err != nil {
			return nil, err
		}
	}
	if _, err := cp.Kubectl(peerDefinition, "apply", "-f", "-"); err != nil {
		return nil, err
	}
	var s *side
	write := func(ctx context.Context, numbers []int) error {
		var group errgroup.Group
		for _, i := range numbers {
			group.Go(func() error {
				patch := fmt.Sprintf(`{"message":%q}`, changedMessage(time.Now()))
				_, err := s.dynamic.Resource(peerResource).Namespace(c.namespace(i)).Patch(ctx, fmt.Sprintf("finding-%07d", i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				return err
			})
		}
		return group.Wait()
	}
	s, err := newSide(peerName, cp.Admin, peerResource, write, cp.PID("kube-apiserver"), cp.PID("etcd"))
	if err != nil {
		return nil, err
	}
	s.findTokens = computeTokens
	// Until its watch cache has everything, it answers from etcd or not at all.
	return s, s.await(ctx, "?limit=1&resourceVersion=0&labelSelector=owner%3Dnobody", 15*time.Minute)
}

// await waits until a list is answered.
func (s *side) await(ctx context.Context, list string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		body, err := s.open(ctx, s.path("", list))
		if err == nil {
			defer body.Close()
			_, err = io.Copy(io.Discard, body)
			return err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// ours are the two ways to this server: through the kube-apiserver, as all clients
// go, and past it.
type ours struct {
	aggregated, direct *side
	loaded, opened     time.Duration
}

func newOurs(ctx context.Context, cp *framework.ControlPlane, c corpus) (*ours, error) {
	server, err := cp.InstallServer(ctx)
	if err != nil {
		return nil, err
	}
	if server.Binary, err = os.Executable(); err != nil {
		return nil, err
	}
	if err := os.Setenv(serveEnv, c.String()); err != nil {
		return nil, err
	}
	data := filepath.Join(cp.Dir, "data")
	// The first start loads and ends.
	if err := server.Run(); err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	o := &ours{}
	for name, to := range map[string]*time.Duration{loadedFile: &o.loaded, openedFile: &o.opened} {
		text, err := os.ReadFile(filepath.Join(data, name))
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			return nil, err
		}
		*to = time.Duration(seconds * float64(time.Second))
	}
	address, err := os.ReadFile(filepath.Join(data, writerFile))
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // there is one writer
	write := func(ctx context.Context, numbers []int) error {
		mu.Lock()
		defer mu.Unlock()
		text := make([]string, len(numbers))
		for i, number := range numbers {
			text[i] = strconv.Itoa(number)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(address)+"/?i="+strings.Join(text, ","), nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("write: %s", response.Status)
		}
		return nil
	}
	resource := v1alpha1.SchemeGroupVersion.WithResource("auditresults")
	if o.aggregated, err = newSide(aggregatedName, cp.Admin, resource, write, server.PID()); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(cp.Admin)
	config.Host = "https://" + server.Address()
	config.ServerName = framework.ServiceHost
	if o.direct, err = newSide(directName, config, resource, write, server.PID()); err != nil {
		return nil, err
	}
	if err := o.aggregated.await(ctx, "?limit=1", time.Minute); err != nil {
		return nil, err
	}
	return o, o.direct.await(ctx, "?limit=1", time.Minute)
}
