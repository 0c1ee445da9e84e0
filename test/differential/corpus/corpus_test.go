package corpus

import (
	"fmt"
	"reflect"
	"testing"
)

// TestDeterministic makes corpora twice, and looks at what they are made of.
func TestDeterministic(t *testing.T) {
	for _, test := range []struct {
		name         string
		make         func(uint64, int) (*Objects, error)
		pods, repeat int // at least
	}{
		{"varied", Varied, 400, 0},
		{"cluster", Cluster, 800, 300},
	} {
		t.Run(test.name, func(t *testing.T) {
			first, err := test.make(3, 1000)
			if err != nil {
				t.Fatal(err)
			}
			second, err := test.make(3, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(first, second) {
				t.Error("the same seed gives different objects")
			}
			kinds, seen, versions := map[string]int{}, map[string]bool{}, map[string]bool{}
			repeated := 0
			for _, obj := range first.Items {
				kinds[obj.GetKind()]++
				if seen[string(obj.GetUID())] {
					repeated++
				}
				seen[string(obj.GetUID())] = true
				version := fmt.Sprint(obj.GetUID(), obj.GetResourceVersion())
				if versions[version] {
					t.Errorf("%s %s comes twice with the same resourceVersion", obj.GetKind(), obj.GetName())
				}
				versions[version] = true
				if obj.GetNamespace() != "" && first.Namespace(obj) == nil {
					t.Errorf("%s %s: no Namespace %s", obj.GetKind(), obj.GetName(), obj.GetNamespace())
				}
			}
			if len(first.Items) != 1000 || kinds["Pod"] < test.pods || repeated < test.repeat || test.repeat == 0 && repeated > 0 {
				t.Errorf("%d objects, %v, %d come again", len(first.Items), kinds, repeated)
			}
		})
	}
}
