// Package e2e tests policy-apiserver on a real control plane, through the
// aggregation layer, with the real kubectl.
package e2e
