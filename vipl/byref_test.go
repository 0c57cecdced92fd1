package vipl_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// afterwards is the data that the tests' programs write to memory when a send from it has completed.
const afterwards = "written after the send was done "

const byRefBytes = 32_000

// byRefBed is a host b with a stalled NIC, and a peer that sends the frames of a test.
type byRefBed struct {
	t      *testing.T
	n      *memoryNet
	spy    *spy
	va, vb *vipl.VI
	x      *box
	status vipl.Status // of the send when it was done; 0: it is not

	disconnecting sync.WaitGroup
}

func newByRefBed(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel) *byRefBed {
	c.gate, c.bubble, c.silence = true, true, time.Hour
	c.queue.ZeroCopy = c.zeroCopy
	p := &byRefBed{t: t}
	p.n, p.va, p.vb = openConnected(t, c, level)
	p.x = newBox(t, p.n.b.NIC, 2, byRefBytes)
	p.spy = newSpy(t, p.n)
	p.n.a.queue.Cut(true)
	return p
}

// post posts a send, or a write, by reference.
func (p *byRefBed) post(write bool) {
	p.t.Helper()
	fillPattern(p.x.buf[0], 1)
	p.x.prepare(0, byRefBytes)
	if write {
		p.x.desc[0].SetRDMAWrite(vipl.AddressSegment{Data: 1 << 20, Handle: 1}, segment(p.x, 0, byRefBytes))
	}
	postDesc(p.t, p.vb, p.x, 0)
	fatalIf(p.t, p.n.b.Counters().ByReference == 0, "it was copied")
}

// tell sends b a frame from its peer.
func (p *byRefBed) tell(kind wire.Kind, change func(h *wire.Header)) {
	p.t.Helper()
	h, ok := p.vb.Expects()
	fatalIf(p.t, !ok, "frames do not flow")
	h.Kind, h.Window = kind, 64
	change(&h)
	p.spy.counted("a frame", func(c vipl.Counters) uint64 { return c.Frames }, 1, func() { p.spy.forge(h, nil) })
}

// disconnect has b disconnect beside looks at the send. It returns when the connection has ended and a driver has
// had the time after which cancelled entries on its ring are the program's. Without -short it returns when
// Disconnect has given up waiting for the NIC, which takes 5 s more.
func (p *byRefBed) disconnect() {
	p.disconnecting.Go(func() { noError(p.t, p.vb.Disconnect()) })
	for _, open := p.vb.Expects(); open; _, open = p.vb.Expects() {
		p.pass(50 * time.Millisecond)
	}
	p.pass(vipl.CancelSettles + 50*time.Millisecond)
	if !testing.Short() {
		p.disconnecting.Wait()
	}
}

// look writes to the memory of a send that is done, at once.
func (p *byRefBed) look() {
	p.t.Helper()
	p.n.b.Poll()
	if d, _ := p.vb.SendDone(); d != nil {
		fatalIf(p.t, p.status != 0 || d != p.x.desc[0], "a descriptor was given back that was not posted")
		p.status = d.Status()
		copy(p.x.buf[0], bytes.Repeat([]byte(afterwards), len(p.x.buf[0])/len(afterwards)))
	}
}

// pass lets time pass.
func (p *byRefBed) pass(d time.Duration) {
	p.t.Helper()
	for range 50 {
		p.look()
		time.Sleep(d / 50)
	}
	p.look()
}

// A peer may claim anything about frames that are sent by reference and have not left, because the NIC is
// stalled: no data leaves that the program has written to their memory after their send was done. In copy mode
// a connection that ends gives the memory back at once.
func TestWhatIsWrittenAfterASendStays(t *testing.T) {
	for name, end := range map[string]func(p *byRefBed){
		"acknowledged": func(p *byRefBed) {
			p.tell(wire.KindAck, func(h *wire.Header) { h.Ack = p.vb.NextFrame() })
		},
		"acknowledged and broken": func(p *byRefBed) {
			p.tell(wire.KindAck, func(h *wire.Header) { h.Ack = p.vb.NextFrame() })
			p.tell(wire.KindError, func(h *wire.Header) { h.Immediate = uint32(wire.ReasonClosed) })
		},
		"selectively acknowledged": func(p *byRefBed) {
			h, _ := p.vb.Expects()
			h.Kind, h.Window = wire.KindAck, 64
			ranges := make([]byte, wire.RangeLen)
			wire.PutRange(ranges, wire.AckRange{Start: h.Ack + 1, End: p.vb.NextFrame()})
			p.spy.counted("a frame", func(c vipl.Counters) uint64 { return c.Frames }, 1, func() { p.spy.forge(h, ranges) })
			p.tell(wire.KindAck, func(h *wire.Header) { h.Ack = p.vb.NextFrame() })
		},
		"broken": func(p *byRefBed) {
			p.tell(wire.KindError, func(h *wire.Header) { h.Immediate = uint32(wire.ReasonClosed) })
		},
		"unheard": func(p *byRefBed) {
			p.tell(wire.KindError, func(h *wire.Header) { h.Immediate = uint32(wire.ReasonUnheard) })
		},
		"closed": func(p *byRefBed) { p.tell(wire.KindClose, func(*wire.Header) {}) },
		"nonsense": func(p *byRefBed) {
			p.tell(wire.KindReadData, func(*wire.Header) {})
		},
		"disconnected": func(p *byRefBed) { p.disconnect() },
		"acknowledged and disconnected": func(p *byRefBed) {
			p.tell(wire.KindAck, func(h *wire.Header) { h.Ack = p.vb.NextFrame() })
			p.disconnect()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
				for i := range 8 {
					zeroCopy, bare, write := i&1 != 0, i&2 != 0, i&4 != 0
					again := (zeroCopy != bare) != write
					kind := fmt.Sprintf("zero-copy %v, bare %v, write %v, again %v", zeroCopy, bare, write, again)
					synctest.Test(t, func(t *testing.T) {
						c := longFrames
						c.zeroCopy, c.bareData = zeroCopy, bare
						p := newByRefBed(t, c, level)
						if again { // it is the retransmission that has not left
							p.post(write)
							p.n.b.queue.SetLies(xdpnictest.Lies{Stall: 1})
							p.pass(20 * time.Millisecond)
							fatalIf(t, p.n.b.Counters().Resent == 0, "nothing is sent again")
						} else {
							p.n.b.queue.SetLies(xdpnictest.Lies{Stall: 1})
							p.post(write)
						}
						end(p)
						p.pass(50 * time.Millisecond)
						if _, open := p.vb.Expects(); (open || zeroCopy) && p.status != 0 {
							t.Errorf("%s: %v while the NIC may still read it", kind, p.status)
						} else if !open && !zeroCopy && p.status == 0 {
							t.Errorf("%s: the connection has ended, and it is not done", kind)
						}
						p.n.b.queue.SetLies(xdpnictest.Lies{})
						p.pass(50 * time.Millisecond)
						p.disconnecting.Wait()
						errorIf(t, p.status == 0, "%s: not done when it has left", kind)
						for _, frame := range p.spy.frames(1) {
							fatalIf(t, bytes.Contains(frame, []byte(afterwards)), "%s: a frame of %d bytes has what was written after %v", kind, len(frame), p.status)
						}
						n := p.n.b.queue.Owners().InFlight
						errorIf(t, n > 0, "%s: %d chunks have not come back", kind, n)
					})
				}
			})
		})
	}
}

// If the link is down, nothing takes frames off the ring. A connection that ends gives memory back all the same: at
// once in copy mode; otherwise when the driver cannot have read the entry before it was cancelled. When the link is
// up again, none of that memory leaves.
func TestMemoryOfFramesThatNothingTakes(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, zeroCopy := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c := longFrames
				c.zeroCopy = zeroCopy
				p := newByRefBed(t, c, level)
				p.n.b.queue.SetLies(xdpnictest.Lies{FlushError: 1})
				p.post(false)
				start := time.Now()
				p.tell(wire.KindError, func(h *wire.Header) { h.Immediate = uint32(wire.ReasonClosed) })
				for p.look(); p.status == 0; p.look() {
					fatalIf(t, time.Since(start) > ackDelay, "zero-copy %v: not done", zeroCopy)
					time.Sleep(time.Millisecond)
				}
				took, least := time.Since(start), time.Duration(0)
				if zeroCopy {
					least = vipl.CancelSettles
				}
				errorIf(t, took < least || took > least+20*time.Millisecond, "zero-copy %v: done after %v, want %v", zeroCopy, took, least)
				errorIf(t, p.n.b.queue.Pending() == 0, "the frame has left")
				p.n.b.queue.SetLies(xdpnictest.Lies{})
				p.pass(50 * time.Millisecond)
				n := p.n.b.queue.Pending()
				errorIf(t, n > 0, "%d entries are still on the ring", n)
				for _, frame := range p.spy.frames(1) {
					fatalIf(t, bytes.Contains(frame, []byte(afterwards)), "zero-copy %v: a frame of %d bytes has what was written afterwards", zeroCopy, len(frame))
				}
			})
		}
	})
}

// While memory may still be read, the program's next operations complete in order behind it: posts on the broken
// VI, Disconnect, which gives up after a while, and the next connection of the VI. Destroy and Deregister are
// refused.
func TestNextConnectionBehindMemoryThatIsRead(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := longFrames
		c.zeroCopy = true
		p := newByRefBed(t, c, level)
		p.n.b.queue.SetLies(xdpnictest.Lies{Stall: 1})
		p.post(false)
		p.tell(wire.KindError, func(h *wire.Header) { h.Immediate = uint32(wire.ReasonClosed) })
		stateIs(t, p.vb, vipl.Error)
		postSend(t, p.vb, p.x, 1, 8)
		start := time.Now()
		must(t, p.vb.Disconnect())
		if took := time.Since(start); took < time.Second || p.x.desc[0].Status() != 0 || p.x.desc[1].Status() != 0 {
			t.Errorf("after %v: status %v and %v", took, p.x.desc[0].Status(), p.x.desc[1].Status())
		}
		errorIf(t, p.vb.Destroy() == nil, "destroyed")
		errorIf(t, p.x.region.Deregister() == nil, "deregistered")
		p.n.a.queue.Cut(false)
		must(t, p.va.Disconnect())
		join(t, p.n.a.NIC, p.va, p.n.b.NIC, p.vb)
		xa, xb := newBox(t, p.n.a.NIC, 1, 64), newBox(t, p.n.b.NIC, 1, 64)
		postRecv(t, p.va, xa, 0, 64)
		postSend(t, p.vb, xb, 0, 64)
		time.Sleep(10 * time.Millisecond)
		if d, err := p.vb.SendDone(); d != nil {
			t.Errorf("%v, %v before those posted earlier", d.Status(), err)
		}
		p.n.b.queue.SetLies(xdpnictest.Lies{})
		want := []vipl.Status{0, vipl.StatusFlushed, 0}
		if level == vipl.ReliableReception {
			want[0] = vipl.StatusFlushed
		}
		for i, d := range []*vipl.Descriptor{p.x.desc[0], p.x.desc[1], xb.desc[0]} {
			equal(t, "descriptor", sent(t, p.vb, want[i]), d)
		}
		received(t, p.va, 0)
	})
}

// A NIC handle that is closed while its memory may still be read does not leave that memory to
// another handle.
func TestCloseLeavesMemoryThatIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := longFrames
		c.zeroCopy = true
		p := newByRefBed(t, c, vipl.ReliableDelivery)
		other, err := vipl.Open(vipl.Provider{
			Port: p.n.b.queue, Agent: p.n.fabric.Agent("shares"), Arena: p.n.b.arena, Silence: time.Hour,
		})
		must(t, err)
		defer other.Close()
		p.n.b.queue.SetLies(xdpnictest.Lies{Stall: 1})
		p.post(false)
		p.tell(wire.KindAck, func(h *wire.Header) { h.Ack = p.vb.NextFrame() })
		at, size := p.x.region.Addr(), uint64(len(p.x.region.Bytes()))
		noError(t, p.n.b.Close())
		for {
			r, err := other.AllocMem(1<<16, vipl.MemAttributes{Ptag: other.CommonPtag()})
			if err != nil {
				break // the arena is used up
			}
			fatalIf(t, r.Addr() < at+size && at < r.Addr()+1<<16, "memory that is read was allocated")
		}
		p.n.b.queue.SetLies(xdpnictest.Lies{})
		fatalIf(t, !comes(func() bool {
			r, err := other.AllocMem(1<<16, vipl.MemAttributes{Ptag: other.CommonPtag()})
			return err == nil && r.Addr() == at
		}), "memory that was read is not allocated")
	})
}
