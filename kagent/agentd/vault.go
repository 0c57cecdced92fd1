package agentd

import (
	"log/slog"

	"viaxdp/kagent"
)

// lenient is a vault whose failure harms nobody but a later agent: programs work
// as before.
type lenient struct {
	vault kagent.Vault
	log   *slog.Logger
}

func (l *lenient) Put(key string, value []byte, fds ...int) error {
	l.warn(key, l.vault.Put(key, value, fds...))
	return nil
}

func (l *lenient) Delete(key string) error {
	l.warn(key, l.vault.Delete(key))
	return nil
}

func (l *lenient) warn(key string, err error) {
	if err != nil {
		l.log.Error("the keeper fails: until there is another one, programs will not survive this agent's death",
			"key", key, "error", err)
	}
}
