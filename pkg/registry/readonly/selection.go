package readonly

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/index"
)

// Fields that every resource can be selected by.
const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// selected is what a request selects, in the terms of the index.
type selected struct {
	// namespace and name of the rows, empty for all.
	namespace, name string
	// none is true if nothing can be selected: the selectors contradict each other.
	none  bool
	terms []index.Term
	// matches decides what terms cannot; nil if terms say it all.
	matches func(*index.Row) bool
	// text identifies the selection, for continue tokens.
	text string
	// all is true if there are no selectors.
	all bool
}

// selects tells whether the request selects a row. nil is never selected.
func (s *selected) selects(row *index.Row, fieldPositions map[string]int) bool {
	if row == nil || s.none || s.namespace != "" && row.Namespace != s.namespace || s.name != "" && row.Name != s.name {
		return false
	}
	for _, term := range s.terms {
		if term.Field != "" {
			if fieldValue(row, term.Field, fieldPositions) != term.Value {
				return false
			}
		} else if value, ok := row.Labels[term.Label]; !ok || value != term.Value {
			return false
		}
	}
	return s.matches == nil || s.matches(row)
}

func fieldValue(row *index.Row, field string, positions map[string]int) string {
	switch field {
	case fieldName:
		return row.Name
	case fieldNamespace:
		return row.Namespace
	}
	if i, ok := positions[field]; ok && i < len(row.Fields) {
		return row.Fields[i]
	}
	return ""
}

func (r *REST) fieldPositions() map[string]int {
	positions := make(map[string]int, len(r.Fields))
	for i, field := range r.Fields {
		positions[field.Path] = i
	}
	return positions
}

// selection turns the selectors of a request into terms that the index can look
// up and a function for the rest. The framework has checked the field names.
func (r *REST) selection(namespace string, options *metainternalversion.ListOptions) (*selected, error) {
	s := &selected{namespace: namespace}
	positions := r.fieldPositions()
	var rest []func(*index.Row) bool
	if options.FieldSelector != nil && !options.FieldSelector.Empty() {
		for _, requirement := range options.FieldSelector.Requirements() {
			if match := s.addField(requirement, positions); match != nil {
				rest = append(rest, match)
			}
		}
		s.text = "f:" + options.FieldSelector.String()
	}
	if options.LabelSelector != nil && !options.LabelSelector.Empty() {
		requirements, selectable := options.LabelSelector.Requirements()
		s.none = s.none || !selectable
		for _, requirement := range requirements {
			if values := requirement.Values().UnsortedList(); len(values) == 1 &&
				(requirement.Operator() == selection.Equals || requirement.Operator() == selection.DoubleEquals || requirement.Operator() == selection.In) {
				s.terms = append(s.terms, index.Term{Label: requirement.Key(), Value: values[0]})
				continue
			}
			rest = append(rest, func(row *index.Row) bool { return requirement.Matches(labels.Set(row.Labels)) })
		}
		s.text += "l:" + options.LabelSelector.String()
	}
	s.all = s.text == ""
	if options.ShardSelector != "" {
		return nil, apierrors.NewBadRequest("shardSelector is not supported by this server")
	}
	if len(rest) > 0 {
		s.matches = func(row *index.Row) bool {
			for _, match := range rest {
				if !match(row) {
					return false
				}
			}
			return true
		}
	}
	return s, nil
}

// addField enters a requirement, or returns the function that decides it.
func (s *selected) addField(requirement fields.Requirement, positions map[string]int) func(*index.Row) bool {
	if requirement.Operator == selection.NotEquals {
		return func(row *index.Row) bool {
			return fieldValue(row, requirement.Field, positions) != requirement.Value
		}
	}
	pin := func(to *string) {
		s.none = s.none || requirement.Value == "" || *to != "" && *to != requirement.Value
		*to = requirement.Value
	}
	switch requirement.Field {
	case fieldName:
		pin(&s.name)
	case fieldNamespace:
		pin(&s.namespace)
	default:
		s.terms = append(s.terms, index.Term{Field: requirement.Field, Value: requirement.Value})
	}
	return nil
}

// query returns the index query of a selection.
func (s *selected) query(table index.Table) index.Query {
	return index.Query{Table: table, Namespace: s.namespace, Name: s.name, Terms: s.terms, Match: s.matches}
}

// FieldLabelConversion returns the function by which a scheme checks the field
// selectors of a resource. Its error lists the fields that can be selected, or the
// values that a field can have: no answer is better than one that looks clean.
func (r *Resource) FieldLabelConversion() func(label, value string) (string, string, error) {
	supported := []Field{{Path: fieldName}}
	if r.Namespaced {
		supported = append(supported, Field{Path: fieldNamespace})
	}
	supported = append(supported, r.Fields...)
	return func(label, value string) (string, string, error) {
		for _, field := range supported {
			if field.Path != label {
				continue
			}
			if field.Values != nil && !slices.Contains(field.Values, value) {
				return "", "", fmt.Errorf("field %s of %s is never %q; it is one of %q", label, r.Table, value, field.Values)
			}
			return label, value, nil
		}
		paths := make([]string, len(supported))
		for i, field := range supported {
			paths[i] = field.Path
		}
		return "", "", fmt.Errorf("field label not supported: %s; %s can be selected by %q", label, r.Table, paths)
	}
}

// FieldsOf turns a table of selectable fields into what Resource.Fields needs.
func FieldsOf[T any](fields []v1alpha1.SelectableField[T]) []Field {
	out := make([]Field, len(fields))
	for i, f := range fields {
		out[i] = Field{Path: f.Path, Values: f.Values}
	}
	return out
}
