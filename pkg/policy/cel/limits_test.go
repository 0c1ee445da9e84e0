package cel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// costly costs 640,000 of large, of the 1,000,000 that one expression may.
	costly = "object.spec.text.contains(object.spec.text)"
	// excessive costs more than one expression may.
	excessive = "(object.spec.text + object.spec.text).contains(object.spec.text + object.spec.text)"

	ten = `[1,2,3,4,5,6,7,8,9,10]`
	// slow takes its time, and costs more than one expression may.
	slow = ten + `.all(a, ` + ten + `.all(b, ` + ten + `.all(c, ` + ten + `.all(d, ` + ten + `.all(e, ` + ten + `.all(f, a + b + c + d + e + f > 0))))))`

	spent    = "the budget of the evaluation is spent; what follows was not evaluated"
	exceeded = "operation cancelled: actual cost limit exceeded"
)

// large is a Pod with a text of 8000 characters.
func large(t testing.TB) *unstructured.Unstructured {
	obj := parse(t, pod)
	if err := unstructured.SetNestedField(obj.Object, strings.Repeat("x", 8000), "spec", "text"); err != nil {
		t.Fatal(err)
	}
	return obj
}

// times repeats an expression.
func times(n int, expression string) []string { return slices.Repeat([]string{expression}, n) }

func TestBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		src  Source
		want []string
	}{
		"one":                      {valid(costly), nil},
		"template":                 {valid("false", costly, "false", costly, "false"), []string{"violation: 0", "violation: 2", "error: validations[3].expression: " + spent}},
		"template, ignored":        {valid("false", costly, costly, "false").ignore(), []string{"violation: 0"}},
		"native":                   {valid(append(times(15, costly), "1 > 2")...).native(), []string{"violation: 15"}},
		"native, too much":         {valid(times(20, costly)...).native(), []string{"error: validations[15].expression: " + spent}},
		"too much for one":         {valid(excessive, "false"), []string{"error: validations[0].expression: " + spent}},
		"too much for one, native": {valid(excessive, "false").native(), []string{"violation: 1", "error: validations[0].expression: " + exceeded}},
		"variable":                 {valid("variables.v", "variables.v", "variables.v").with("v", costly), nil},
		"two variables":            {valid("variables.v", "variables.w", "false").with("v", costly).with("w", costly), []string{"error: validations[1].expression: " + spent}},
		"conditions of their own":  {valid(costly, "false").where(costly, costly), []string{"violation: 1"}},
		"conditions":               {valid("false").where(times(5, costly)...), []string{"error: matchCondition[3].expression: " + spent}},
		"conditions, ignored":      {valid("false").where(times(5, costly)...).ignore(), []string{"not matched"}},
		"message":                  {saying(Validation{Expression: "false", Message: "why", MessageExpression: excessive + ` ? "a" : "b"`}), []string{"violation: why"}},
		"messages after all":       {saying(Validation{Expression: "!" + costly, Message: "why", MessageExpression: costly + ` ? "a" : "b"`}, Validation{Expression: "false", Message: "z"}), []string{"violation: why", "violation: z"}},
		"annotations of their own": {valid(costly).note("k", costly+` ? "a" : "b"`), []string{"annotation: k=a"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := evaluate(t, tc.src, Input{Object: large(t)})
			if diff := cmp.Diff(append([]string{}, tc.want...), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCancellation(t *testing.T) {
	cause := errors.New("enough")
	for name, src := range map[string]Source{
		"validation": valid(slow).native(),
		"ignored":    valid(slow).native().ignore(),
		"condition":  valid("true").where(slow),
		"variable":   valid("variables.v").with("v", slow),
		"annotation": valid("true").note("k", slow+` ? "a" : "b"`),
		"message":    saying(Validation{Expression: "false", MessageExpression: slow + ` ? "a" : "b"`}),
	} {
		t.Run(name, func(t *testing.T) {
			p := compile(t, src)
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(cause)
			result, err := p.Eval(ctx, Input{Object: parse(t, pod)})
			if !errors.Is(err, cause) {
				t.Errorf("got %v, want %v", err, cause)
			}
			if len(result.Violations)+len(result.Errors) > 0 {
				t.Errorf("got %+v of an evaluation that was stopped", result)
			}
		})
	}
}

// An expression stops in the middle.
func TestDeadline(t *testing.T) {
	p := compile(t, valid(slow).native())
	in := Input{Object: parse(t, pod)}
	began := time.Now()
	if _, err := p.Eval(context.Background(), in); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(began)
	ctx, cancel := context.WithTimeout(context.Background(), whole/20)
	defer cancel()
	began = time.Now()
	_, err := p.Eval(ctx, in)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline that is exceeded", err)
	}
	if took := time.Since(began); took > whole/2 {
		t.Errorf("took %v of %v", took, whole)
	}
}

// Programs and inputs are shared, and nothing is written to them.
func TestConcurrentEval(t *testing.T) {
	src := valid(`namespaceObject.metadata.labels.env == "prod" && variables.names == ["a", "b"]`, `variables.params.list.size() == 5`).
		with("names", "object.spec.containers.map(c, c.name)").where(`request.name == "p"`)
	src.Validations[1].MessageExpression = `"want 5, not " + string(variables.params.list.size())`
	template := compile(t, src)
	native := compile(t, valid(`params.data.max == "3" && request.operation == "CREATE"`, "object.metadata.labels.app == params.data.max").params())
	in := Input{Object: parse(t, pod), Namespace: parse(t, namespace), Params: map[string]any{"list": []any{"x", int64(1)}}}
	nativeIn := Input{Object: in.Object, Params: parse(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"max":"3"}}`), Operation: "CREATE"}
	object, ns, params, config := in.Object.DeepCopy(), in.Namespace.DeepCopy(), map[string]any{"list": []any{"x", int64(1)}}, parse(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"max":"3"}}`)

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				result, err := template.Eval(context.Background(), in)
				if err != nil || len(result.Errors) > 0 || len(result.Violations) != 1 || result.Violations[0].Message != "want 5, not 2" {
					t.Errorf("template: %+v %v", result, err)
				}
				result, err = native.Eval(context.Background(), nativeIn)
				if err != nil || len(result.Errors) > 0 || len(result.Violations) != 1 || result.Violations[0].Message != "1" {
					t.Errorf("native: %+v %v", result, err)
				}
			}
		})
	}
	wg.Wait()
	for _, diff := range []string{
		cmp.Diff(object, in.Object), cmp.Diff(ns, in.Namespace), cmp.Diff(params, in.Params), cmp.Diff(config, nativeIn.Params),
	} {
		if diff != "" {
			t.Error(diff)
		}
	}
}
