// Package framework starts a real control plane for tests: etcd, kube-apiserver
// and kube-controller-manager, built from source into a cache, and policy-apiserver
// behind it.
//
// TEST_ASSET_ETCD, TEST_ASSET_KUBE_APISERVER, TEST_ASSET_KUBE_CONTROLLER_MANAGER
// and TEST_ASSET_KUBECTL name binaries to use instead.
package framework
