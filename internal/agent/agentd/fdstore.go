package agentd

import (
	"log/slog"

	"viaxdp/internal/agent/fdstore"
)

// lenient is a descriptor store whose failure harms nobody but a later agent: programs work
// as before.
type lenient struct {
	fdStore fdstore.Store
	log     *slog.Logger
}

func (l *lenient) Put(key string, value []byte, fds ...int) error {
	l.warn(key, l.fdStore.Put(key, value, fds...))
	return nil
}

func (l *lenient) Delete(key string) error {
	l.warn(key, l.fdStore.Delete(key))
	return nil
}

func (l *lenient) warn(key string, err error) {
	if err != nil {
		l.log.Error("the descriptor store fails: until there is another one, programs will not survive this agent's death",
			"key", key, "error", err)
	}
}
