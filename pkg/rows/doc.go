// Package rows says how the API objects of policy.example.io are kept in the
// index: one table per resource, the object as JSON without its resourceVersion,
// and the values of the selectable fields beside it.
//
// The audit encodes and the registry decodes with it, so neither knows of the
// other. It imports the API types and the index, and no serving code.
package rows
