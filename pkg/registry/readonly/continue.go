package readonly

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"policy.example.io/policy-apiserver/pkg/index"
)

// continueToken is the position behind a page. It holds nothing that the client
// has not been shown.
type continueToken struct {
	Version int `json:"v"`
	// Revision of the list; 0 means the current one, for clients that go on after
	// their revision was compacted.
	Revision uint64 `json:"r"`
	// Namespace and Name of the last object returned.
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"n"`
	// Left is how many objects are behind the page, 0 if that is not known. The client
	// has been told it as the remainingItemCount of the page.
	Left int64 `json:"l,omitempty"`
	// Selection is a digest of the resource, the namespace and the selectors that the
	// token is good for.
	Selection string `json:"s"`
	// Epoch of what the user may see, empty if that is everything.
	Epoch string `json:"e,omitempty"`
}

const tokenVersion = 1

func selectionDigest(table index.Table, namespace, selectors string) string {
	sum := sha256.Sum256([]byte(string(table) + "\x00" + namespace + "\x00" + selectors))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

func (t continueToken) encode() (string, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(data), nil
}

// decodeContinue reads a token that must be for this selection.
func decodeContinue(text, digest string) (*continueToken, error) {
	invalid := func(why string) error {
		return apierrors.NewBadRequest("invalid continue token: " + why + "; start the list anew without one")
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, invalid("it is not one that this server has returned")
	}
	var token continueToken
	if err := json.Unmarshal(data, &token); err != nil || token.Version != tokenVersion || token.Name == "" {
		return nil, invalid("it is not one that this server has returned")
	}
	if token.Selection != digest {
		return nil, invalid("it belongs to a list of another resource, namespace or selector")
	}
	return &token, nil
}
