package cel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWhatIsReadOfObjects: what follows the last selected field is read as a whole, and
// what is only asked for is not.
func TestWhatIsReadOfObjects(t *testing.T) {
	for expression, want := range map[string][]string{
		`object.metadata.name == 'x'`:                            {".metadata.name*"},
		`object['metadata']['labels']['a/b'] == 'x'`:             {".metadata.labels.a/b*"},
		`object.?spec.?replicas.orValue(1) > 2`:                  {".spec.replicas*"},
		`object.spec[?'replicas'].orValue(1) > 2`:                {".spec.replicas*"},
		`has(object.spec)`:                                       {".spec"},
		`has(object.spec.replicas) && object.spec.replicas > 2`:  {".spec.replicas*"},
		`object.spec.containers.all(c, c.image.startsWith('x'))`: {".spec.containers*"},
		`object.spec.containers[0].image == 'x'`:                 {".spec.containers*"},
		`object != null && null != object.spec`:                  {".spec"},
		`variables.anyObject.spec.x == 1`:                        {".spec.x*"},
		`dyn(object).spec.x == 1`:                                {"*"},
		`(object == null ? oldObject : object).spec.x == 1`:      {"*"},
		`[object].exists(o, o.spec.x == 1)`:                      {"*"},
		`object.spec[object.metadata.name] == 1`:                 {".metadata.name*", ".spec*"},
		`request.name == 'x'`:                                    {""},
		`namespaceObject.metadata.labels['a'] == 'x'`:            {""},
	} {
		p, err := Compile(Source{Validations: []Validation{{Expression: expression}}})
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if diff := cmp.Diff(want, p.Object.Paths()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", expression, diff)
		}
	}
	p, err := Compile(Source{Validations: []Validation{{Expression: `namespaceObject.metadata.labels['a'] == 'x'`}}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".metadata.labels.a*"}, p.NamespaceObject.Paths()); diff != "" {
		t.Errorf("of the Namespace (-want +got):\n%s", diff)
	}
}
