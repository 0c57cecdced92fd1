package agentclient

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"viaxdp/kagent/agentproto"
)

// Where the agent does not answer, the error says so, and what to do.
func TestSilentAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("unix", socket) // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := raw.(*net.UnixConn)
	for _, limit := range []time.Duration{20 * time.Millisecond, -time.Second} { // that of the answer, and of the request
		_, _, err = exchange(c, &agentproto.Reader{C: c}, &agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{}}, limit)
		if !errors.Is(err, os.ErrDeadlineExceeded) ||
			!strings.HasPrefix(err.Error(), "the agent has not answered within "+limit.String()) || strings.Contains(err.Error(), "i/o timeout") {
			t.Errorf("%v", err)
		}
	}
}
