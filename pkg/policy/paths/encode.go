package paths

import (
	"encoding/json"
	"fmt"
)

// treeJSON is how a Tree is written.
type treeJSON struct {
	Fields map[string]*Tree `json:"f,omitempty"`
	Each   *Tree            `json:"e,omitempty"`
	Whole  bool             `json:"w,omitempty"`
	Text   bool             `json:"t,omitempty"`
}

// MarshalJSON implements json.Marshaler. Equal trees have the same JSON.
func (t *Tree) MarshalJSON() ([]byte, error) {
	return json.Marshal(treeJSON{t.fields, t.each, t.whole, t.text})
}

// UnmarshalJSON implements json.Unmarshaler. Several is not written and is false
// afterwards: it matters to who fills a tree, not to who projects by it.
func (t *Tree) UnmarshalJSON(data []byte) error {
	var in treeJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("decode a tree of paths: %w", err)
	}
	*t = Tree{fields: in.Fields, each: in.Each, whole: in.Whole, text: in.Text}
	return nil
}
