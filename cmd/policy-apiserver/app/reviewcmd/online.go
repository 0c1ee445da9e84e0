package reviewcmd

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"policy.example.io/policy-apiserver/apis/policy/v1alpha1"
	"policy.example.io/policy-apiserver/pkg/generated/clientset/versioned"
)

// online has reviews answered by the policy-apiserver of a cluster.
type online struct {
	client    versioned.Interface
	namespace string // of localreviews, empty for reviews
}

var _ reviewer = (*online)(nil)

func newOnline(kubeconfig, namespace string) (*online, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return &online{client: client, namespace: namespace}, nil
}

func (o *online) review(ctx context.Context, spec *v1alpha1.ReviewSpec) (*v1alpha1.ReviewStatus, error) {
	if o.namespace != "" {
		answer, err := o.client.PolicyV1alpha1().LocalReviews(o.namespace).Create(ctx, &v1alpha1.LocalReview{Spec: *spec}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("create a localreview: %w", err)
		}
		return &answer.Status, nil
	}
	answer, err := o.client.PolicyV1alpha1().Reviews().Create(ctx, &v1alpha1.Review{Spec: *spec}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create a review: %w", err)
	}
	return &answer.Status, nil
}

func (o *online) problems() []string { return nil }
