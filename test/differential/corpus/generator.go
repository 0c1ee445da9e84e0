package corpus

import (
	"fmt"
	"math/rand/v2"
	"time"
)

type document = map[string]any

// list is short for the arrays of documents.
type list = []any

// generator makes documents. The same seed gives the same documents.
type generator struct {
	*rand.Rand
	namespaces []namespace
	apps       int
	version    int
	now        time.Time
}

type namespace struct{ name, stage string }

func newGenerator(seed uint64) *generator {
	g := &generator{
		Rand:    rand.New(rand.NewPCG(seed, 2)),
		version: 48_000_000,
		now:     time.Date(2026, time.March, 2, 8, 0, 0, 0, time.UTC),
	}
	for _, name := range []string{"kube-system", "ingress-system", "monitoring", "default"} {
		g.namespaces = append(g.namespaces, namespace{name, ""})
	}
	for _, area := range []string{"shop", "billing", "search", "payments", "mobile", "data", "network", "intranet", "partner"} {
		for _, stage := range []string{"production", "staging", "development"} {
			g.namespaces = append(g.namespaces, namespace{area + "-" + stage[:4], stage})
		}
	}
	return g
}

// one returns one of the choices.
func one[T any](g *generator, choices ...T) T { return choices[g.IntN(len(choices))] }

// chance is true in percent of a hundred cases.
func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

const (
	hexDigits = "0123456789abcdef"
	// suffixLetters are those of generated names.
	suffixLetters = "bcdfghjklmnpqrstvwxz2456789"
)

func (g *generator) text(letters string, n int) string {
	out := make([]byte, n)
	for i := range out {
		out[i] = letters[g.IntN(len(letters))]
	}
	return string(out)
}

func (g *generator) uid() string {
	return fmt.Sprintf("%s-%s-4%s-a%s-%s", g.text(hexDigits, 8), g.text(hexDigits, 4), g.text(hexDigits, 3), g.text(hexDigits, 3), g.text(hexDigits, 12))
}

func (g *generator) resourceVersion() string {
	g.version += 1 + g.IntN(40)
	return fmt.Sprint(g.version)
}

// past returns a time of the last month.
func (g *generator) past() string {
	return g.now.Add(-time.Duration(g.IntN(30*24*3600)) * time.Second).Format(time.RFC3339)
}

func (g *generator) namespace() namespace { return one(g, g.namespaces...) }

// metadata of an object that was created a while ago. A namespace of "" leaves
// the object cluster-scoped.
func (g *generator) metadata(name, namespace string) document {
	m := document{
		"name":              name,
		"uid":               g.uid(),
		"resourceVersion":   g.resourceVersion(),
		"creationTimestamp": g.past(),
	}
	if namespace != "" {
		m["namespace"] = namespace
	}
	return m
}

// app is what the objects of an application have in common.
type app struct {
	name      string
	namespace namespace
	labels    document
}

func (g *generator) app() app {
	g.apps++
	a := app{
		name:      fmt.Sprintf("%s-%s-%d", one(g, "cart", "orders", "ledger", "index", "profile", "gateway", "worker", "mailer"), one(g, "api", "web", "sync", "cache"), g.apps),
		namespace: g.namespace(),
	}
	a.labels = document{"app.kubernetes.io/name": a.name}
	if g.chance(80) {
		a.labels["app.kubernetes.io/version"] = one(g, "1.4.2", "v2.0", "2026.1.17", "main-5f3c2a1")
	}
	if g.chance(70) {
		a.labels["team"] = one(g, "red", "green", "blue", "network")
	}
	if g.chance(50) {
		a.labels["app.kubernetes.io/managed-by"] = one(g, "helm", "kustomize", "argocd", "hand")
	}
	return a
}

func (g *generator) namespaceDocuments() []document {
	documents := make([]document, 0, len(g.namespaces))
	for _, n := range g.namespaces {
		metadata := g.metadata(n.name, "")
		labels := document{"kubernetes.io/metadata.name": n.name}
		if n.stage != "" {
			labels["stage"] = n.stage
			labels["pod-security.kubernetes.io/enforce"] = one(g, "baseline", "restricted", "privileged")
		}
		if g.chance(70) {
			labels["owner"] = one(g, "team-red", "team-green", "team-blue", "somebody", "Team-Red")
		}
		metadata["labels"] = labels
		documents = append(documents, managed(document{
			"apiVersion": "v1", "kind": "Namespace", "metadata": metadata,
			"spec":   document{"finalizers": list{"kubernetes"}},
			"status": document{"phase": "Active"},
		}, "kubectl-create", metadata["creationTimestamp"].(string)))
	}
	return documents
}

// with returns a copy of a document with more fields.
func with(d, more document) document {
	out := make(document, len(d)+len(more))
	for k, v := range d {
		out[k] = v
	}
	for k, v := range more {
		out[k] = v
	}
	return out
}
