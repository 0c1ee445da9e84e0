package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// Item is an object of the inventory.
type Item struct {
	// Namespace is empty for cluster-scoped objects.
	Namespace, GroupVersion, Kind, Name string
	// Value is what is kept of the object.
	Value Value
}

// Inventory is the document data.inventory. It is immutable.
type Inventory struct {
	store storage.Store
}

// NewInventory makes the document of objects:
//
//	cluster[groupVersion][kind][name]
//	namespace[namespace][groupVersion][kind][name]
//
// As in Gatekeeper, both are there only if they have objects.
func NewInventory(items []Item) *Inventory {
	data := branch{}
	inventory := data.below("inventory")
	for i := range items {
		item := &items[i]
		place := inventory
		if item.Namespace == "" {
			place = place.below("cluster")
		} else {
			place = place.below("namespace").below(item.Namespace)
		}
		place.below(item.GroupVersion).below(item.Kind)[item.Name] = item.Value
	}
	return &Inventory{store: inmem.NewFromASTObject(data.object())}
}

// branch of the document in the making: branches and Values by name.
type branch map[string]any

func (b branch) below(name string) branch {
	sub, ok := b[name].(branch)
	if !ok {
		sub = branch{}
		b[name] = sub
	}
	return sub
}

func (b branch) object() ast.Object {
	terms := make([][2]*ast.Term, 0, len(b))
	for name, content := range b {
		switch content := content.(type) {
		case branch:
			terms = append(terms, ast.Item(ast.StringTerm(name), ast.NewTerm(content.object())))
		case Value:
			terms = append(terms, ast.Item(ast.StringTerm(name), content))
		}
	}
	return ast.NewObject(terms...)
}
