package audit

// stateReader and stateWriter are the index's private state as far as it is
// passed around here.
type stateReader interface {
	Get(key string) []byte
	Ascend(prefix string, fn func(key string, value []byte) error) error
}

type stateWriter interface {
	stateReader
	Put(key string, value []byte) error
	Delete(key string) error
}

// clearPrefix deletes all keys that begin with prefix.
func clearPrefix(state stateWriter, prefix string) error {
	var keys []string
	err := state.Ascend(prefix, func(key string, _ []byte) error {
		keys = append(keys, key)
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := state.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
