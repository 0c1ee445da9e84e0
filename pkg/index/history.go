package index

import (
	"bytes"
	"fmt"

	"go.etcd.io/bbolt"
)

// A version that was superseded is kept by its row's key, a zero byte and its
// revision. The revision that superseded it is in front of the row.

func historyKey(key []byte, revision uint64) []byte {
	out := make([]byte, 0, len(key)+9)
	out = append(append(out, key...), 0)
	return append(out, encodeUint64(revision)...)
}

// splitHistoryKey returns the key of the row and the revision.
func splitHistoryKey(data []byte) (key []byte, revision uint64, err error) {
	n := len(data) - 9
	if n < 1 || data[n] != 0 {
		return nil, 0, fmt.Errorf("%w: history key %q", ErrDamaged, data)
	}
	d := decoder{data: data[n+1:]}
	return data[:n], d.uint64(), nil
}

// putHistory returns how many bytes it adds to the history.
func putHistory(tx *bbolt.Tx, t Table, row *Row, superseded uint64) (int64, error) {
	key := historyKey(encodeKey(row.Key), row.Revision)
	sealed := seal(key, append(encodeUint64(superseded), encodeRow(row)...))
	return int64(len(key) + len(sealed)), tx.Bucket(bucketHist).Bucket([]byte(t)).Put(key, sealed)
}

// decodeHistory returns a version and the revision that superseded it.
func decodeHistory(key, sealed []byte) (row *Row, superseded uint64, err error) {
	payload, err := unseal(key, sealed)
	if err != nil {
		return nil, 0, err
	}
	rowKey, _, err := splitHistoryKey(key)
	if err != nil {
		return nil, 0, err
	}
	k, err := decodeKey(rowKey)
	if err != nil {
		return nil, 0, err
	}
	d := decoder{data: payload}
	superseded = d.uint64()
	row, err = decodeRow(k, d.data)
	return row, superseded, err
}

// versions are the buckets of a table's rows.
type versions struct{ live, hist *bbolt.Bucket }

func versionsOf(tx *bbolt.Tx, t Table) versions {
	return versions{live: tx.Bucket(bucketLive).Bucket([]byte(t)), hist: tx.Bucket(bucketHist).Bucket([]byte(t))}
}

// at returns the version of a row at a revision, nil if there was none.
func (v versions) at(key []byte, revision uint64) (*Row, error) {
	if sealed := v.live.Get(key); sealed != nil {
		row, err := decodeLive(key, sealed)
		if err != nil || row.Revision <= revision {
			return row, err
		}
	}
	// The newest superseded version that is not newer than the revision.
	c := v.hist.Cursor()
	bound := historyKey(key, revision)
	k, value := c.Seek(bound)
	if k == nil || !bytes.Equal(k, bound) {
		if k == nil {
			k, value = c.Last()
		} else {
			k, value = c.Prev()
		}
	}
	if k == nil || !bytes.HasPrefix(k, bound[:len(bound)-8]) {
		return nil, nil
	}
	row, superseded, err := decodeHistory(k, value)
	if err != nil || superseded <= revision {
		return nil, err
	}
	return row, nil
}

// versionOf returns the version of a row that was written at a revision.
func versionOf(tx *bbolt.Tx, t Table, key []byte, revision uint64) (*Row, error) {
	row, err := liveRow(tx, t, key)
	if err != nil {
		return nil, err
	}
	if row != nil && row.Revision == revision {
		return row, nil
	}
	k := historyKey(key, revision)
	sealed := tx.Bucket(bucketHist).Bucket([]byte(t)).Get(k)
	if sealed == nil {
		return nil, fmt.Errorf("%w: revision %d of row %q is missing", ErrDamaged, revision, key)
	}
	row, _, err = decodeHistory(k, sealed)
	return row, err
}

// liveRow returns the current version of a row, nil if there is none.
func liveRow(tx *bbolt.Tx, t Table, key []byte) (*Row, error) {
	sealed := tx.Bucket(bucketLive).Bucket([]byte(t)).Get(key)
	if sealed == nil {
		return nil, nil
	}
	return decodeLive(key, sealed)
}

func decodeLive(key, sealed []byte) (*Row, error) {
	return decodeLiveParts(key, sealed, true)
}

func decodeLiveParts(key, sealed []byte, withAttrs bool) (*Row, error) {
	payload, err := unseal(key, sealed)
	if err != nil {
		return nil, err
	}
	k, err := decodeKey(key)
	if err != nil {
		return nil, err
	}
	return decodeRowParts(k, payload, withAttrs)
}
