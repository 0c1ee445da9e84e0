// Package apiserver puts the resources of policy.example.io into a generic API
// server: scheme, codecs, OpenAPI, storage and health checks.
//
// It follows the chain Config, CompletedConfig, Server of k8s.io/apiserver. The
// index, the feed and the audit are made by the caller, who also owns them.
package apiserver
