package conformance

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// TestOpenAPI lints both documents: a broken one breaks kubectl for the whole
// cluster, because the kube-apiserver merges it into its own.
func TestOpenAPI(t *testing.T) {
	s := start(t)
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/policy.example.io/v1alpha1"} {
		response, err := s.http.Get(s.config.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		var document map[string]any
		if err := json.Unmarshal(body, &document); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		models := document["definitions"]
		if components, ok := document["components"].(map[string]any); ok {
			models = components["schemas"]
		}
		definitions, ok := models.(map[string]any)
		if !ok || len(definitions) == 0 {
			t.Fatalf("%s has no models", path)
		}
		kinds := map[string]bool{}
		for name, model := range definitions {
			if strings.Contains(name, "/") {
				t.Errorf("%s: model name %s", path, name)
			}
			lintModel(t, path, name, model.(map[string]any), kinds)
		}
		for _, kind := range []string{"AuditResult", "AuditResultList", "ClusterAuditResult", "ClusterAuditResultList", "AuditRun", "AuditRunList", "ConstraintSummary", "ConstraintSummaryList"} {
			if !kinds[kind] {
				t.Errorf("%s: kind %s has no x-kubernetes-group-version-kind", path, kind)
			}
		}
		walk(document, func(key string, value any) {
			if ref, ok := value.(string); ok && key == "$ref" && !resolves(document, ref) {
				t.Errorf("%s: dangling $ref %s", path, ref)
			}
			if key == "SchemaProps" || key == "ArbitraryKeys" || key == "SwaggerSchemaProps" {
				t.Errorf("%s has a Go field name as key: %s", path, key)
			}
		})
	}
}

func lintModel(t *testing.T, path, name string, model map[string]any, kinds map[string]bool) {
	t.Helper()
	if gvks, ok := model["x-kubernetes-group-version-kind"].([]any); ok {
		for _, gvk := range gvks {
			kinds[gvk.(map[string]any)["kind"].(string)] = true
		}
	}
	if !strings.HasPrefix(name, "io.example.policy.") {
		return
	}
	if model["description"] == nil {
		t.Errorf("%s: %s has no description", path, name)
	}
	properties, _ := model["properties"].(map[string]any)
	for field, property := range properties {
		if p := property.(map[string]any); p["description"] == nil {
			t.Errorf("%s: %s.%s has no description", path, name, field)
		}
	}
}

func walk(value any, visit func(key string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			visit(key, child)
			walk(child, visit)
		}
	case []any:
		for _, child := range v {
			walk(child, visit)
		}
	}
}

// resolves tells whether a reference within a document leads somewhere.
func resolves(document map[string]any, ref string) bool {
	var value any = document
	for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		object, ok := value.(map[string]any)
		if !ok || object[part] == nil {
			return false
		}
		value = object[part]
	}
	return true
}
