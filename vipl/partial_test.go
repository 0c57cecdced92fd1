package vipl_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// An invalid frame in the middle of an unreliable VI's message ends that message, and none of it precedes the next
// one.
func TestProtocolErrorInAMessage(t *testing.T) {
	record := binary.BigEndian.AppendUint32(nil, 4<<16)
	record = append(record, "pack"...)
	whole := wire.FlagFirst | wire.FlagLast
	for _, c := range []struct {
		name          string
		protocolError wire.Header
		payload       []byte
		aborts        bool // an RDMA write of several frames
	}{
		{"pack", wire.Header{Kind: wire.KindPack}, record, false},
		{"pack of nothing", wire.Header{Kind: wire.KindPack}, nil, false},
		{"read", wire.Header{Kind: wire.KindRead, Immediate: 8}, nil, false},
		{"read data", wire.Header{Kind: wire.KindReadData}, []byte("data"), false},
		{"write goes on", wire.Header{Kind: wire.KindWrite}, []byte("data"), false},
		{"message in it", wire.Header{Kind: wire.KindData, Flags: whole}, []byte("other"), false},
		{"write in it", wire.Header{Kind: wire.KindWrite, Flags: whole}, nil, false},
		{"pack in a write", wire.Header{Kind: wire.KindPack}, record, true},
		{"read in a write", wire.Header{Kind: wire.KindRead}, nil, true},
		{"write that is too long", wire.Header{Kind: wire.KindWrite}, make([]byte, 51), true},
	} {
		for _, rest := range []bool{false, true} { // the message goes on behind it
			name := c.name
			if rest {
				name += ", and the rest"
			}
			t.Run(name, func(t *testing.T) {
				n := newMemoryNet(t, memoryConfig{gate: true})
				s := newSpy(t, n)
				attrs := vipl.VIAttributes{Level: vipl.UnreliableDelivery, MaxTransferSize: 50, EnableRDMAWrite: true}
				va, vb := createVI(t, n.a.NIC, attrs, nil, nil), createVI(t, n.b.NIC, attrs, nil, nil)
				join(t, n.a.NIC, va, n.b.NIC, vb)
				x := newBox(t, n.b.NIC, 2, 64)
				postRecv(t, vb, x, 0, 64)
				postRecv(t, vb, x, 1, 64)
				send := func(h wire.Header, payload []byte) {
					t.Helper()
					at, _ := vb.Expects()
					h.VI, h.Key, h.Seq = at.VI, at.Key, at.Seq
					s.counted("frame", func(c vipl.Counters) uint64 { return c.Frames }, 1, func() { s.forge(h, payload) })
				}
				first := wire.Header{Kind: wire.KindData, Flags: wire.FlagFirst}
				part := []byte("the beginning of another: ")
				if c.aborts {
					first.Kind, part = wire.KindWrite, nil
				}
				send(first, part)
				send(c.protocolError, c.payload)
				if rest {
					send(wire.Header{Kind: first.Kind, Flags: wire.FlagLast}, nil)
				}
				want := []string{"hello"}
				if c.protocolError.Kind == wire.KindData {
					want = []string{"other", "hello"}
				}
				send(wire.Header{Kind: wire.KindData, Flags: whole}, []byte("hello"))
				for i, text := range want {
					d := received(t, vb, 0)
					errorIf(t, d != x.desc[i] || string(x.buf[i][:d.Length]) != text, "message %d is %q, want %q", i, x.buf[i][:d.Length], text)
				}
				d, err := vb.RecvDone()
				errorIf(t, d != nil, "one more message: %v", err)
				got := n.b.Counters()
				errorIf(t, got.Dropped != 1 || got.Writes > 0 && c.aborts, "%+v", got)
				var told []vipl.ErrorCode
				if c.aborts {
					told = append(told, vipl.ErrorRDMAWriteAbort)
				}
				n.b.errs.are(t, told...)
				stateIs(t, vb, vipl.Connected)
			})
		}
	}
}

// entering is an agent that calls then once a VI is in the table, before the connect goes on.
type entering struct {
	*kagenttest.Agent
	then func(num uint32, key uint64) error
}

func (e *entering) Enter(num uint32, key uint64, peer netip.Addr) error {
	err := e.Agent.Enter(num, key, peer)
	if f := e.then; err == nil && f != nil {
		e.then = nil
		err = f(num, key)
	}
	return err
}

// refusing is a peer, at b's address, that accepts a request of a, sends frames, and withdraws before the requester
// confirms.
type refusing struct {
	n        *memoryNet
	a        *entering // a's agent
	queue    *xdpnictest.Queue
	template wire.Template
}

func newRefusing(t *testing.T, c memoryConfig) *refusing {
	t.Helper()
	r := &refusing{}
	c.agent = func(a *kagenttest.Agent) kagent.Agent {
		r.a = &entering{Agent: a}
		return r.a
	}
	r.n = newMemoryNet(t, c)
	r.queue, r.template = r.n.attacker(t, xdpnictest.Config{}), templateTo(t, r.n.b, r.n.a)
	return r
}

// connect has va ask for a connection with the peer, which sends these frames between its Accept and its Reject, and
// returns what the request does. failure is what entering the VI in the table returns behind that.
func (r *refusing) connect(t *testing.T, va *vipl.VI, level vipl.ReliabilityLevel, failure error, frames ...peerFrame) error {
	t.Helper()
	ours := kagent.Offer{
		VI: 0x10001, Key: kagent.NewKey(), Seq: 1000, Window: 64, MaxPayload: 1400, Level: uint8(level), MaxTransfer: vipl.MaxTransferSize,
	}
	ctx, withdraw := context.WithCancel(t.Context())
	theirs, over := make(chan kagent.Offer, 1), make(chan error, 1)
	go func() {
		in, err := r.n.b.agent.Wait(ctx, kagent.Address{Disc: []byte("refusing")})
		if err == nil {
			theirs <- in.Offer()
			err = in.Accept(ctx, ours)
		}
		over <- err
	}()
	synctest.Wait()
	r.a.then = func(uint32, uint64) error {
		to := <-theirs
		for _, f := range frames {
			h := f.Header
			h.VI, h.Key, h.Ack, h.Window = to.VI, to.Key, to.Seq, 64
			if h.Kind != wire.KindProbe {
				h.Seq = ours.Seq
				ours.Seq++
			}
			was := r.n.a.Counters()
			errorIf(t, !r.queue.SendFrame(&r.template, h, []byte(f.payload)), "a frame does not go")
			synctest.Wait()
			r.n.a.Poll()
			now := r.n.a.Counters()
			errorIf(t, now.Frames != was.Frames+1 || now.Corrupt+now.WrongKey+now.WrongSource+now.UnknownVI > 0, "a frame is not taken: %+v", now)
		}
		// The requester's agent proves its address meanwhile; before that a Reject may not go there.
		time.Sleep(proofTime)
		withdraw()
		synctest.Wait()
		return failure
	}
	_, err := va.ConnectRequest(vipl.NetAddress{}, address(r.n.b, "refusing"), ackDelay)
	withdraw()
	errorIf(t, <-over == nil, "the peer was confirmed")
	return err
}

// proofTime is longer than an agent takes to prove its address: its first resend is due after 5 ms.
const proofTime = 100 * time.Millisecond

type peerFrame struct {
	wire.Header
	payload string
}

// No data of a peer whose connect fails reaches the next peer's messages: no part of a message precedes the
// next one, and no whole message is in a receive that is posted for it. The connect ends in Error, like a
// connection that breaks, and what was posted is flushed.
func TestDataOfARefusedPeer(t *testing.T) {
	first := wire.Header{Kind: wire.KindData, Flags: wire.FlagFirst}
	whole := wire.Header{Kind: wire.KindData, Flags: wire.FlagFirst | wire.FlagLast}
	for _, c := range []struct {
		name    string
		frames  []peerFrame
		arrived []string // whole messages
		failure error    // of the agent, behind them
		idle    bool     // nothing was taken that is the peer's: the VI is as it was
	}{
		{name: "a part", frames: []peerFrame{{first, "EVIL PREFIX: "}}},
		{name: "a part, and the agent fails", frames: []peerFrame{{first, "EVIL PREFIX: "}}, failure: kagent.ErrState},
		{name: "two parts", frames: []peerFrame{{first, "EVIL "}, {wire.Header{Kind: wire.KindData}, "PREFIX: "}}},
		{name: "a whole message", frames: []peerFrame{{whole, "EVIL"}}, arrived: []string{"EVIL"}},
		{name: "a message and a part", frames: []peerFrame{{whole, "EVIL"}, {first, "EVIL PREFIX: "}}, arrived: []string{"EVIL"}},
		{name: "as many as receives", frames: []peerFrame{{whole, "1"}, {whole, "2"}, {whole, "3"}}, arrived: []string{"1", "2", "3"}},
		{name: "a part and the end", frames: []peerFrame{{first, "EVIL PREFIX: "}, {wire.Header{Kind: wire.KindClose}, ""}}},
		{name: "a probe", frames: []peerFrame{{wire.Header{Kind: wire.KindProbe}, ""}}, idle: true},
		{name: "nothing", idle: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				r := newRefusing(t, memoryConfig{bubble: true})
				n := r.n
				va, vb := newVI(t, n.a.NIC, level), newVI(t, n.b.NIC, level)
				xa, xb := newBox(t, n.a.NIC, 3, 64), newBox(t, n.b.NIC, 1, 64)
				postRecvs(t, va, xa, 3, 64)
				want := vipl.ErrRejected
				if c.failure != nil {
					want = vipl.ErrInvalidParameter
				}
				wantError(t, "request", r.connect(t, va, level, c.failure, c.frames...), want)
				if !c.idle {
					s := stateIs(t, va, vipl.Error)
					errorIf(t, s.Cause == nil, "no cause")
					n.a.errs.are(t, vipl.ErrorConnLost)
					wantError(t, "request in Error", errOf(va.ConnectRequest(vipl.NetAddress{}, address(n.b, "next"), ackDelay)), vipl.ErrInvalidState)
					for i := range 3 {
						if i >= len(c.arrived) {
							d := received(t, va, vipl.StatusFlushed)
							errorIf(t, d != xa.desc[i] || d.Length != 0, "receive %d: another descriptor, or length %d", i, d.Length)
						} else if d := received(t, va, 0); d != xa.desc[i] || string(xa.buf[i][:d.Length]) != c.arrived[i] {
							t.Errorf("message %d is %q", i, xa.buf[i][:d.Length])
						}
					}
					must(t, va.Disconnect())
					postRecvs(t, va, xa, 3, 64)
				}
				s := stateIs(t, va, vipl.Idle)
				errorIf(t, s.Cause != nil || s.RecvEmpty, "%+v", s)
				nothingDone(t, va.RecvDone, vipl.ErrNotDone)
				n.a.errs.are(t)
				join(t, n.a.NIC, va, n.b.NIC, vb)
				copy(xb.buf[0], "hello")
				for i := range 3 {
					postSend(t, vb, xb, 0, 5)
					sent(t, vb, 0)
					d := received(t, va, 0)
					errorIf(t, d != xa.desc[i] || string(xa.buf[i][:d.Length]) != "hello", "message %d is %q", i, xa.buf[i][:d.Length])
				}
			})
		})
	}
}

// The beginning of a message does not precede another connection's messages, however the first connection ends:
// here by Farewell, which flushes nothing. A new connection ensures that.
func TestHeadIsRewound(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	va, vb := newVI(t, n.a.NIC, vipl.UnreliableDelivery), newVI(t, n.b.NIC, vipl.UnreliableDelivery)
	x := newBox(t, n.b.NIC, 1, 64)
	postRecv(t, vb, x, 0, 64)
	vb.PlaceAtHead([]byte("before: "))
	join(t, n.a.NIC, va, n.b.NIC, vb)
	equal(t, "a new connection begins behind", vb.PlacedAtHead(), 0)
	h, _ := vb.Expects()
	h.Kind, h.Flags = wire.KindData, wire.FlagFirst
	s.counted("frame", func(c vipl.Counters) uint64 { return c.Frames }, 1, func() { s.forge(h, []byte("a part")) })
	got := vb.PlacedAtHead()
	fatalIf(t, got != 6, "%d bytes are placed", got)
	n.b.Farewell()
	equal(t, "a connection has ended, and", vb.PlacedAtHead(), 0)
}

// A request for an RDMA read in the middle of a reliable VI's message ends the connection, and nothing is read.
func TestReadInAMessage(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	_, vb := openPair(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	postRecv(t, vb, newBox(t, n.b.NIC, 1, 64), 0, 64)
	from := openBox(t, n.b.NIC).remote(0)
	h := s.expected(vb, wire.KindData)
	h.Flags = wire.FlagFirst
	s.counted("the first frame", func(c vipl.Counters) uint64 { return c.Frames }, 1, func() { s.forge(h, []byte("the beginning")) })
	h = s.expected(vb, wire.KindRead)
	h.Immediate, h.RemoteAddr, h.RemoteHandle = 8, from.Data, uint32(from.Handle)
	s.counted("the read", func(c vipl.Counters) uint64 { return c.Malformed }, 1, func() { s.forge(h, nil) })
	stateIs(t, vb, vipl.Error)
	errorIf(t, n.b.Counters().Reads > 0, "it was answered")
}

// The answer to an RDMA read comes in order, and is for the oldest read: a piece for another place ends the connection, and
// is not placed.
func TestReadDataElsewhere(t *testing.T) {
	for name, change := range map[string]func(h *wire.Header){
		"another place": func(h *wire.Header) { h.RemoteAddr = 8 },
		"another read":  func(h *wire.Header) { h.Immediate++ },
	} {
		t.Run(name, func(t *testing.T) {
			n := newMemoryNet(t, memoryConfig{gate: true})
			s := newSpy(t, n)
			_, vb := openPair(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
			n.a.queue.Cut(true) // a answers nothing
			x := newBox(t, n.b.NIC, 1, 64)
			x.desc[0].SetRDMARead(openBox(t, n.a.NIC).remote(0), segment(x, 0, 64))
			postDesc(t, vb, x, 0)
			var asked wire.Packet
			for _, frame := range s.frames(1) {
				if p := (wire.Packet{}); p.Decode(frame) == nil && p.Kind == wire.KindRead {
					asked = p
				}
			}
			fatalIf(t, asked.Kind != wire.KindRead, "the read was not asked for")
			h := s.expected(vb, wire.KindReadData)
			h.Immediate, h.Ack = asked.Seq, asked.Seq+1
			change(&h)
			s.counted("the data", func(c vipl.Counters) uint64 { return c.Malformed }, 1, func() { s.forge(h, []byte("eight by")) })
			stateIs(t, vb, vipl.Error)
			errorIf(t, x.buf[0][0] != 0, "it was placed: %q", x.buf[0][:16])
			n.a.queue.Cut(false)
		})
	}
}
