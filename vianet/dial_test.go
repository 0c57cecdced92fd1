package vianet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// The errors of Dial when no connection is possible.
func TestDialErrors(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	host := h.nicB.Query().Address.String()
	for _, test := range []struct {
		network, address string
		want             error
	}{
		{"via", net.JoinHostPort(host, "7"), syscall.ECONNREFUSED},
		{"tcp4", "10.9.9.9:7", syscall.EHOSTUNREACH},
		{"udp", net.JoinHostPort(host, "7"), net.UnknownNetworkError("udp")},
		{"via", host, nil},
		{"via", ":7", nil},
		{"via6", net.JoinHostPort(host, "7"), nil},
		{"via", net.JoinHostPort(host, "65536"), nil},
	} {
		c, err := h.a.Dial(test.network, test.address)
		var oe *net.OpError
		wrong := c != nil || !errors.As(err, &oe) || oe.Op != "dial" || test.want != nil && !errors.Is(err, test.want)
		nstest.ErrorIf(t, wrong, "%s %s: %v, %v", test.network, test.address, c, err)
		nstest.ErrorIf(t, errors.As(err, &oe) && oe.Timeout(), "%s %s: %v is a time-out", test.network, test.address, err)
	}
}

// A peer accepts, sends, and then refuses. The requesting VI cannot retry, and Dial returns the refusal.
func TestDialIsRefusedBehindData(t *testing.T) {
	refused := &memorynic.Refused{Times: 1}
	h := inMemoryOf(t, asleep, memorynic.Config{Agent: func(a *kagenttest.Agent) kagent.Agent {
		refused.Agent = a
		return refused
	}}, memorynic.Config{})
	refused.Wire, refused.NIC = h.wire, h.nicA
	h.bearBreaks()
	addr := h.listen(t).Addr().String()
	isErr(t, "Dial", nstest.Err(h.a.Dial("via", addr)), syscall.ECONNREFUSED)
	await.Until(t, "the VI is destroyed", func() bool { return len(h.nicA.Status().VIs) == 0 })
	c, err := h.a.Dial("via", addr)
	must(t, err)
	c.Close()
}

// unheard is a cancelled context whose Done channel never closes: only Err shows the cancellation.
type unheard struct{ context.Context }

func (unheard) Err() error { return context.Canceled }

// A Dial ends with its context, even if the attempt takes longer.
func TestDialContext(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	addr := h.listen(t).Addr().String()

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, ctx := range []context.Context{ctx, unheard{t.Context()}} {
		isErr(t, "cancelled", nstest.Err(h.a.DialContext(ctx, "via", addr)), context.Canceled)
	}
	reason := errors.New("enough")
	ctx, because := context.WithCancelCause(context.Background())
	because(reason)
	_, err := h.a.DialContext(ctx, "via", addr)
	isErr(t, "cancelled with a reason", err, context.Canceled)
	isErr(t, "cancelled with a reason", err, reason)
	for _, cause := range []error{nil, reason} {
		ctx, cancel = context.WithDeadlineCause(context.Background(), longAgo, cause)
		_, err := h.a.DialContext(ctx, "via", addr)
		isTimeout(t, "Dial", err)
		nstest.ErrorIf(t, !errors.Is(err, context.DeadlineExceeded) || cause != nil && !errors.Is(err, cause), "a deadline because of %v: %v", cause, err)
		cancel()
	}

	ctx, cancel = context.WithCancel(context.Background())
	c, err := h.a.DialContext(ctx, "via", addr)
	must(t, err)
	cancel()
	check(t, nstest.Err(c.Write([]byte("after its end the context does not matter"))))
}

// A Dial that ends with its context says so, also if the context ends at the second address of a silent host.
func TestDialContextOfSeveral(t *testing.T) { synctest.Test(t, dialContextOfSeveral) }

func dialContextOfSeveral(t *testing.T) {
	h := inMemory(t, asleep)
	var silent []vianet.Addr
	for _, host := range []netip.Addr{netip.MustParseAddr("fd00::2"), h.nicB.Query().Address} {
		h.fabric.Cut(host, true)
		silent = append(silent, vianet.Addr{AddrPort: netip.AddrPortFrom(host, 7)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := vianet.DialTo(ctx, h.a, silent)
	isTimeout(t, "past its deadline", err)
	isErr(t, "past its deadline", err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Second, cancel) // the second has the last 15 of 30 seconds
	isErr(t, "cancelled", nstest.Err(vianet.DialTo(ctx, h.a, silent)), context.Canceled)
}

// A cancelled Dial ends at once at every stage, and leaves nothing behind: while the host does not answer, and while
// the peer does not greet.
func TestDialIsCancelled(t *testing.T) {
	h := inMemory(t, asleep)
	h.bearBreaks()
	host := h.nicB.Query().Address
	dial := func() (cancel func(), ended <-chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		to := net.JoinHostPort(host.String(), "7")
		return cancel, background(func() error { return nstest.Err(h.a.DialContext(ctx, "via", to)) })
	}

	h.fabric.Cut(host, true)
	cancel, ended := dial()
	await.Until(t, "a VI asks for a connection", func() bool {
		vis := h.nicA.Status().VIs
		return len(vis) == 1 && vis[0].State == vipl.ConnectPending.String()
	})
	cancel()
	isErr(t, "nobody answers", <-ended, context.Canceled)
	h.fabric.Cut(host, false)

	tag, err := h.nicB.CreatePtag()
	must(t, err)
	region, err := h.nicB.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	must(t, err)
	mute, err := h.nicB.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	must(t, err)
	d, err := region.Descriptor(0, 2)
	must(t, err)
	d.SetSegments(region.Segment(64, 4000))
	must(t, mute.PostRecv(d, region.Handle()))
	l, err := h.nicB.Listen(vipl.NetAddress{Discriminator: []byte("vianet\x00\x07")})
	must(t, err)
	cancel, ended = dial()
	request, err := l.Wait(t.Context())
	must(t, err)
	must(t, request.Accept(mute))
	must(t, nstest.Err(mute.RecvWait(testTimeout))) // the greeting, which has no answer
	cancel()
	isErr(t, "the peer does not greet", <-ended, context.Canceled)
	check(t, errors.Join(l.Close(), mute.Disconnect(), mute.Destroy(), region.Deregister(), tag.Destroy()))
	h.atRest(t)
}

// Connections that arrive while a listener closes are accepted, refused or reset; none is left in between.
func TestAcceptBesideClose(t *testing.T) {
	h := inMemory(t, vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 320})
	h.bearBreaks()
	for round := range 20 {
		l := h.listen(t)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						nstest.ErrorIf(t, !errors.Is(err, net.ErrClosed), "%v", err)
						return
					}
					c.Close()
				}
			})
			all.Go(func() {
				for {
					c, err := h.a.Dial("via", l.Addr().String())
					if err != nil {
						nstest.ErrorIf(t, !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET), "%v", err)
						return
					}
					c.SetDeadline(time.Now().Add(testTimeout))
					_, err = c.Read(make([]byte, 1))
					nstest.ErrorIf(t, err != io.EOF && !errors.Is(err, syscall.ECONNRESET),
						"a connection that was not accepted, or was closed: %v", err)
					c.Close()
				}
			})
		}
		time.Sleep(time.Duration(round) * 300 * time.Microsecond)
		check(t, l.Close())
		all.Wait()
	}
	h.atRest(t)
}

// Ports: one listener each, free again after Close, chosen when it is 0.
func TestListenPorts(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l, err := h.b.Listen("via", ":80")
	must(t, err)
	a := l.Addr().(vianet.Addr)
	nstest.ErrorIf(t, a.Port() != 80 || a.Network() != "via", "address %v %v", a.Network(), a)
	_, err = h.b.Listen("via", ":80")
	var oe *net.OpError
	nstest.ErrorIf(t, !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &oe) || oe.Op != "listen" || oe.Addr.String() != "[::]:80", "twice: %v", err)
	own := net.JoinHostPort(h.nicB.Query().Address.String(), "80")
	isErr(t, "the same port at one address", nstest.Err(h.b.Listen("via", own)), syscall.EADDRINUSE)
	nstest.ErrorIf(t, nstest.Err(h.b.Listen("unix", ":80")) == nil, "a listener of another network")
	c, err := h.a.Dial("via", own)
	must(t, err)
	c.Close()
	must(t, l.Close())
	isErr(t, "second Close", l.Close(), net.ErrClosed)
	isErr(t, "Accept after Close", nstest.Err(l.Accept()), net.ErrClosed)
	for range 100 {
		l, err := h.b.Listen("tcp", "[::]:80")
		nstest.FatalIf(t, err != nil, "again: %v", err)
		l.Close()
	}
}

// A free port is one that no other stack over the same NIC listens on.
func TestListenFree(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	const theirs, free = 50_000, 58_192 // half of those that there are lie between them
	other, err := newStack(t, h.nicB, vianet.Options{}).Listen("via", fmt.Sprint(":", theirs))
	must(t, err)
	vianet.TakeAllBut(h.b, theirs, free)
	for range 40 { // each comes to the one or the other first
		l, err := h.b.Listen("via", ":0")
		must(t, err)
		nstest.Equal(t, "port", l.Addr().(vianet.Addr).Port(), free)
		l.Close()
	}
	vianet.TakeAllBut(h.b, theirs)
	for range 2 { // the second time shows what the first has kept
		isErr(t, "no port is free", nstest.Err(h.b.Listen("via", ":0")), syscall.EADDRNOTAVAIL)
	}
	other.Close()
	l, err := h.b.Listen("via", ":0")
	must(t, err)
	l.Close()
}

// A deadline and Close end an Accept. Connections that were not accepted are reset, as their streams have not ended.
func TestListenerCloses(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	accepts := func(then func(error)) (ended *sync.WaitGroup) {
		ended = new(sync.WaitGroup)
		for range 3 {
			ended.Go(func() {
				var err error
				for err == nil {
					_, err = l.Accept()
				}
				then(err)
			})
		}
		return ended
	}
	for _, set := range []time.Duration{10 * time.Millisecond, -time.Second} { // the second is past for calls to come
		ended := accepts(func(err error) { isTimeout(t, "Accept", err) })
		l.SetDeadline(time.Now().Add(set))
		ended.Wait()
	}
	l.SetDeadline(never)

	c := h.dial(t, l.Addr())
	ended := accepts(func(err error) { nstest.WantErr(t, "Accept", err, net.ErrClosed) })
	time.AfterFunc(10*time.Millisecond, func() { l.Close() })
	ended.Wait()
	waiting := h.listen(t)
	lost := h.dial(t, waiting.Addr())
	waiting.Close()
	lost.SetDeadline(time.Now().Add(testTimeout))
	readsNothing(t, "a connection that was not accepted", lost, 1, syscall.ECONNRESET)
	c.Close()
}

// So they are when their stack is closed, or shut down.
func TestStackClosesUnaccepted(t *testing.T) {
	for name, end := range map[string]func(*vianet.Stack) error{
		"Close":    (*vianet.Stack).Close,
		"Shutdown": func(s *vianet.Stack) error { return s.Shutdown(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			h := inMemory(t, vianet.Options{})
			c := h.dial(t, h.listen(t).Addr())
			await.Until(t, "it waits for Accept", func() bool { return h.b.Stats().Accepted == 1 })
			check(t, end(h.b))
			isErr(t, "Read", nstest.Err(c.Read(make([]byte, 1))), syscall.ECONNRESET)
		})
	}
}

// Closing a stack ends everything that is under way on it, and the peers of its connections see that.
func TestStackClose(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	l := h.listen(t)
	must(t, nstest.Err(b.Write([]byte("last"))))
	var wait sync.WaitGroup
	wait.Go(func() {
		isErr(t, "Accept", nstest.Err(l.Accept()), net.ErrClosed)
	})
	wait.Go(func() {
		isErr(t, "Read", nstest.Err(b.Read(make([]byte, 1))), net.ErrClosed)
	})
	check(t, h.b.Close())
	wait.Wait()
	readsAll(t, a, []byte("last"))
	nstest.WantErr(t, "second Close", h.b.Close(), nil)
	isErr(t, "Dial", nstest.Err(h.b.Dial("via", l.Addr().String())), net.ErrClosed)
	isErr(t, "Listen", nstest.Err(h.b.Listen("via", ":0")), net.ErrClosed)
}

// A NIC that is closed under its stack ends the connections, and nothing hangs.
func TestNICClose(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, _ := h.pair(t)
	read, wrote := goRead(a, 100_000), goWrite(a, make([]byte, 100_000))
	must(t, h.nicA.Close())
	nstest.ErrorIf(t, <-read == nil, "Read on a closed NIC")
	nstest.ErrorIf(t, <-wrote == nil, "Write on a closed NIC")
	nstest.ErrorIf(t, nstest.Err(h.a.Dial("via", "10.0.0.2:1")) == nil, "Dial on a closed NIC")
}

func TestOptions(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	for _, o := range []vianet.Options{
		{Buffers: vianet.MinBuffers - 1}, {Buffers: vipl.MaxDescriptorsPerQueue + 1},
		{BufferSize: 256}, {BufferSize: 4097}, {BufferSize: 2 << 20}, {Linger: -1}, {Backlog: -1}, {Backlog: 1 << 16},
	} {
		nstest.ErrorIf(t, nstest.Err(vianet.New(h.nicA, o)) == nil, "%+v is taken", o)
	}
}
