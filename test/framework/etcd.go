package framework

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// EtcdState is how much etcd holds at a revision.
type EtcdState struct {
	Revision int64
	Keys     int64
}

// ownWrites begin the keys that a control plane writes by itself, at any time:
// leases, events, and the note of how far it has compacted.
var ownWrites = []string{"/registry/leases/", "/registry/masterleases/", "/registry/peerserverleases/", "/registry/events/", "compact_rev_key"}

// EtcdState returns the number of keys and the revision of etcd.
func (cp *ControlPlane) EtcdState() (EtcdState, error) {
	answer, err := cp.etcdRange(map[string]any{"count_only": true})
	if err != nil {
		return EtcdState{}, err
	}
	return EtcdState{Revision: answer.Header.Revision, Keys: answer.Count}, nil
}

// EtcdWrites returns the keys that were written after a state and are still there,
// sorted, without those that the control plane writes by itself.
func (cp *ControlPlane) EtcdWrites(after EtcdState) ([]string, error) {
	answer, err := cp.etcdRange(map[string]any{"keys_only": true, "min_mod_revision": after.Revision + 1})
	if err != nil {
		return nil, err
	}
	keys := []string{}
	for _, kv := range answer.KVs {
		key := string(kv.Key)
		if !slices.ContainsFunc(ownWrites, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// etcdAnswer is the answer to a range request. etcd's gateway writes integers as
// strings, and keys in base64.
type etcdAnswer struct {
	Header struct {
		Revision int64 `json:"revision,string"`
	} `json:"header"`
	Count int64 `json:"count,string"`
	KVs   []struct {
		Key []byte `json:"key"`
	} `json:"kvs"`
}

// EtcdURL is where etcd serves clients, and its metrics.
func (cp *ControlPlane) EtcdURL() string { return cp.etcdURL }

// EtcdEntry is a key of etcd with its value.
type EtcdEntry struct {
	Key   string
	Value []byte
}

// EtcdPut writes entries past the kube-apiserver, in one transaction, of which etcd
// takes 128.
func (cp *ControlPlane) EtcdPut(entries []EtcdEntry) error {
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type operation struct {
		Put put `json:"request_put"`
	}
	operations := make([]operation, len(entries))
	for i, entry := range entries {
		operations[i].Put = put{[]byte(entry.Key), entry.Value}
	}
	return cp.etcdCall("txn", map[string]any{"success": operations}, &struct{}{})
}

// etcdRange asks for all keys.
func (cp *ControlPlane) etcdRange(request map[string]any) (*etcdAnswer, error) {
	zero := []byte{0} // from the first key to the last
	request["key"], request["range_end"] = zero, zero
	var answer etcdAnswer
	return &answer, cp.etcdCall("range", request, &answer)
}

// etcdCall calls a method of etcd's KV service through its gateway.
func (cp *ControlPlane) etcdCall(method string, request map[string]any, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	response, err := http.Post(cp.etcdURL+"/v3/kv/"+method, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s", response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}
