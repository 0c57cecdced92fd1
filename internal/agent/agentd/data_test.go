package agentd_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// pair makes two hosts with an agent each.
func pair(t *testing.T, o nstest.Options, cfg agentConfig) (a, b *agent) {
	t.Helper()
	na, nb := nstest.Pair(t, o)
	return startAgent(t, na, cfg), startAgent(t, nb, cfg)
}

// nic opens a NIC by an agent, from this process, which is in another namespace.
func (a *agent) nic(opts ...vipl.Option) *vipl.NIC {
	a.t.Helper()
	n, err := a.open(opts...)
	nstest.Must(a.t, err)
	a.t.Cleanup(func() { nstest.Check(a.t, n.Close()) })
	return n
}

func (a *agent) open(opts ...vipl.Option) (*vipl.NIC, error) {
	opts = append([]vipl.Option{vipl.WithAgent(a.socket), vipl.WithArena(16 << 20)}, opts...)
	return vipl.OpenNIC(a.ns.Name, opts...)
}

// end is one end of a connection, with memory.
type end struct {
	nic *vipl.NIC
	vi  *vipl.VI
	mem *vipl.Region
}

func newEnd(t testing.TB, n *vipl.NIC) *end {
	t.Helper()
	tag, err := n.CreatePtag()
	nstest.Must(t, err)
	e := &end{nic: n}
	e.mem, err = n.AllocMem(1<<20, vipl.MemAttributes{Ptag: tag})
	nstest.Must(t, err)
	e.vi, err = n.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	nstest.Must(t, err)
	return e
}

// connect connects two ends, b at host.
func connect(t testing.TB, a, b *end, disc string) {
	t.Helper()
	errc := make(chan error, 1)
	go func() {
		c, err := b.nic.ConnectWait(vipl.NetAddress{Discriminator: []byte(disc)}, waitLimit)
		if err == nil {
			err = c.Accept(b.vi)
		}
		errc <- err
	}()
	remote := vipl.NetAddress{Host: b.nic.Query().Address, Discriminator: []byte(disc)}
	var err error
	for end := time.Now().Add(waitLimit); time.Now().Before(end); {
		if _, err = a.vi.ConnectRequest(vipl.NetAddress{}, remote, waitLimit); !errors.Is(err, vipl.ErrNoMatch) {
			break // else the other side does not wait yet
		}
	}
	nstest.Must(t, err)
	nstest.Must(t, <-errc)
}

// exchange sends a message and checks that it arrives.
func exchange(t testing.TB, from, to *end, text string) {
	t.Helper()
	recv, err := to.mem.Descriptor(0, 1)
	nstest.Must(t, err)
	recv.SetSegments(to.mem.Segment(4096, 4096))
	nstest.Must(t, to.vi.PostRecv(recv, to.mem.Handle()))
	send, err := from.mem.Descriptor(64, 1)
	nstest.Must(t, err)
	copy(from.mem.Bytes()[8192:], text)
	send.SetSegments(from.mem.Segment(8192, len(text)))
	nstest.Must(t, from.vi.PostSend(send, from.mem.Handle()))
	d, err := to.vi.RecvWait(waitLimit)
	nstest.Must(t, err)
	if got := to.mem.Bytes()[4096 : 4096+d.Length]; !bytes.Equal(got, []byte(text)) {
		t.Fatalf("%q arrived, want %q", got, text)
	}
	if _, err := from.vi.SendWait(waitLimit); err != nil {
		t.Fatal(err)
	}
}
