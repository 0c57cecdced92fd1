package agentclient_test

import (
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// If there is no agent, the error reports that and how to start one.
func TestNoAgent(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "agent.sock")
	gone := filepath.Join(t.TempDir(), "agent.sock") // a socket that its process has left behind
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: gone, Net: "unix"})
	nstest.Must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	for socket, why := range map[string]string{nobody: "no such file", gone: "refused"} {
		want := regexp.MustCompile("there is no agent at " + socket + ` \(.*` + why + `.*\): root starts one by "via-xdp agent --socket ` + socket + `"$`)
		_, err := agentclient.Open(socket, true, kagent.Config{Interface: "via0"})
		nstest.ErrorIf(t, !agentclient.Absent(err) || !want.MatchString(err.Error()), "%v, want %s", err, want)
		if _, err := agentclient.Probe(socket); !agentclient.Absent(err) || !want.MatchString(err.Error()) {
			t.Errorf("status: %v, want %s", err, want)
		}
	}
}

// The daemon gets all that the program has configured.
func TestOpenTellsAll(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nstest.Must(t, err)
	defer l.Close()
	heard := make(chan *agentproto.Open, 1)
	go func() {
		defer close(heard)
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		hello, err := agentproto.ReadRequest(c, nil)
		if err != nil {
			return
		}
		_ = agentproto.WriteReply(c, &agentproto.Reply{ID: hello.ID, Welcome: &agentproto.Welcome{Version: agentproto.Version}})
		q, err := agentproto.ReadRequest(c, nil)
		if err != nil {
			return
		}
		heard <- q.Open
		_ = agentproto.WriteReply(c, &agentproto.Reply{ID: q.ID, Error: agentproto.NewError(agentproto.ErrNotServed)})
	}()
	_, err = agentclient.Open(socket, true, kagent.Config{
		Interface: "via0", Queue: 3, Mode: xdpnic.ModeNative, RequireMode: true, ArenaBytes: 1 << 20,
		Hugepages: hugepages.Avoid, ChunkSize: 2048, RxChunks: 4, TxChunks: 5, SingleBuffer: true, Steer: kagent.SteerOff,
	})
	nstest.ErrorIf(t, !errors.Is(err, agentproto.ErrNotServed), "%v, want what the daemon says", err)
	want := &agentproto.Open{
		Interface: "via0", Queue: 3, Mode: xdpnic.ModeNative, RequireMode: true, ArenaBytes: 1 << 20,
		Hugepages: hugepages.Avoid, ChunkSize: 2048, RxChunks: 4, TxChunks: 5, SingleBuffer: true, Steer: kagent.SteerOff,
	}
	nstest.Equal(t, "what the daemon hears, -want +got", cmp.Diff(want, <-heard), "")
}
