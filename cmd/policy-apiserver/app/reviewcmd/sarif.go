package reviewcmd

import (
	"encoding/json"
	"io"
	"strings"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/version"
)

// The parts of SARIF 2.1.0 that a report has.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifInvocation struct {
		ExecutionSuccessful bool                `json:"executionSuccessful"`
		Notifications       []sarifNotification `json:"toolExecutionNotifications,omitempty"`
	}
	sarifNotification struct {
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
	sarifLogical struct {
		FullyQualifiedName string `json:"fullyQualifiedName"`
		Kind               string `json:"kind"`
	}
)

// writeSARIF prints a result for each violation. What could not be judged is a
// notification: it is no result.
func writeSARIF(w io.Writer, r *report) error {
	run := sarifRun{
		Tool:    sarifTool{sarifDriver{Name: "policy-apiserver", Version: version.Get(), Rules: []sarifRule{}}},
		Results: []sarifResult{},
	}
	rules := map[string]int{}
	invocation := sarifInvocation{ExecutionSuccessful: len(r.Problems) == 0 && r.unjudged() == 0}
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		location := []sarifLocation{{
			Physical: sarifPhysical{sarifArtifact{v.File}, sarifRegion{max(v.Line, 1)}},
			Logical:  []sarifLogical{{FullyQualifiedName: v.resource(), Kind: "resource"}},
		}}
		if v.unjudged() {
			text := v.constraint() + " on " + v.resource() + ": " + strings.Join(v.messages(), "; ")
			invocation.Notifications = append(invocation.Notifications, sarifNotification{Level: "error", Message: sarifMessage{text}, Locations: location})
		}
		if v.Result != v1alpha1.ReviewFail {
			continue
		}
		rule, ok := rules[v.constraint()]
		if !ok {
			rule = len(rules)
			rules[v.constraint()] = rule
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: v.constraint()})
		}
		for _, message := range v.messages() {
			run.Results = append(run.Results, sarifResult{
				RuleID: v.constraint(), RuleIndex: rule, Level: sarifLevel(v), Message: sarifMessage{message}, Locations: location,
			})
		}
	}
	for _, problem := range r.Problems {
		invocation.Notifications = append(invocation.Notifications, sarifNotification{Level: "error", Message: sarifMessage{problem}})
	}
	run.Invocations = []sarifInvocation{invocation}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(sarifLog{
		Schema:  "https://json.schemastore.org/sarif-2.1.0.json",
		Version: "2.1.0",
		Runs:    []sarifRun{run},
	})
}

func sarifLevel(v *verdict) string {
	switch v.severity() {
	case severities["deny"]:
		return "error"
	case severities["warn"]:
		return "warning"
	}
	return "note"
}
