package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// The attack of a peer: it completes sends that the NIC has not read yet. A program sends by reference. Its NIC
// stalls: the kernel, which then leaves frames on the ring, or a NIC in zero-copy mode, which has taken them and
// reads the memory when it goes on. The peer acknowledges what it has not got, reports errors, and closes. The
// program overwrites the memory of each send that completes. All of it is in memory.

const (
	peerMessages = 16     // sends of a connection, each in memory of its own
	peerBytes    = 32_000 // of the longest
	peerMTU      = 9000
	peerSilence  = 60 * time.Millisecond // after which the program gives a peer up that says nothing
	peerWithin   = time.Minute           // how long anything may take that the NIC does in the end
	peerStall    = 5 * time.Millisecond  // how long it stalls after a connection's end, at most
)

// peerSecret is what the program writes to the memory of a completed send.
var peerSecret = []byte("\x5esecret\xd3")

// peerNeeds are counted by the attack, and none may be 0.
var peerNeeds = []string{
	"connections", "sends completed", "frames by reference", "frames heard", "acknowledged early", "selective", "errors told",
	"closes told", "stalled", "stalled in zero-copy mode",
}

// peerKernels are kernels that are slow to send: always, and most of the time.
var peerKernels = []xdpnictest.Lies{{Stall: 1}, {Stall: 0.7}, {Stall: 0.9, LateCompletion: time.Millisecond}}

// peerVictim is the program: a NIC with memory for the sends of one connection.
type peerVictim struct {
	nic      *vipl.NIC
	queue    *xdpnictest.Queue
	arena    *hugepages.Arena
	agent    *kagenttest.Agent
	listener *vipl.Listener
	tag      *vipl.Ptag
	sends    *ring

	mu     sync.Mutex
	heard  uint64 // frames that left for the peer
	leaked uint64 // bytes in them that were written after a completion
}

// peerRun is the attack of a peer in progress.
type peerRun struct {
	*attack
	rng     *rand.Rand
	wire    *xdpnictest.Wire
	hostile *kagenttest.Agent
	voice   *xdpnictest.Queue // the peer sends on it
	victims map[bool]*peerVictim
}

var peerDisc = []byte("victim")

// peer runs the attack.
func (a *attack) peer() (line string, err error) {
	defer fail.Catch(&err)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	p := &peerRun{
		attack: a, rng: rand.New(rand.NewPCG(a.cfg.Seed, 2)), wire: xdpnictest.NewWire(),
		hostile: fabric.Agent("hostile"), victims: make(map[bool]*peerVictim),
	}
	defer p.wire.Close()
	defer p.hostile.Close()
	p.hostile.SetMTU(peerMTU)
	p.voice = fail.Must(p.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbb}, RxChunks: 1, TxChunks: 64}))
	defer p.voice.Close()
	for _, zeroCopy := range []bool{false, true} {
		p.victims[zeroCopy] = p.openVictim(fabric.Agent("victim"), zeroCopy)
	}
	for round := 0; round == 0 || !a.over(); round++ {
		a.note("connection")
		for _, zeroCopy := range []bool{false, true} {
			for _, lies := range peerKernels {
				p.connection(p.victims[zeroCopy], lies)
			}
		}
	}
	var leaked uint64
	for zeroCopy, v := range p.victims {
		s, q := v.nic.Counters(), v.queue.Stats()
		a.Counts["frames by reference"] += s.ByReference
		what := "stalled"
		if zeroCopy {
			what = "stalled in zero-copy mode"
		}
		a.Counts[what] += q.Stalled
		a.Counts["frames heard"] += v.heard
		leaked += v.leaked
		p.closeVictim(v)
	}
	a.Counts["bytes leaked"] = leaked
	if leaked > 0 {
		a.violated("%d bytes that were written after a completion reached the peer", leaked)
	}
	c := a.Counts
	return fmt.Sprintf("%d connections, %d sends completed, %d frames by reference, %d heard; %d early and %d selective acknowledgements, "+
		"%d errors, %d closes: %d bytes written after a completion reached the peer", c["connections"], c["sends completed"],
		c["frames by reference"], c["frames heard"], c["acknowledged early"], c["selective"], c["errors told"], c["closes told"], leaked), nil
}

// openVictim opens a program's NIC.
func (p *peerRun) openVictim(agent *kagenttest.Agent, zeroCopy bool) *peerVictim {
	v := &peerVictim{agent: agent}
	agent.SetMTU(peerMTU)
	cfg := xdpnictest.Config{MultiBuffer: true, ZeroCopy: zeroCopy, MAC: agent.Link().MAC, Admit: agent.Admit}
	pool := cfg.PoolBytes()
	v.arena = fail.Must(hugepages.New(hugepages.Config{Size: pool + 8<<20, Reserve: pool, Policy: hugepages.Avoid}))
	cfg.Memory = v.arena.Bytes()
	v.queue = fail.Must(p.wire.Queue(cfg))
	to := p.hostile.Link().MAC
	v.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
		if [6]byte(frame) == to { // else it was cancelled: no host gets it
			v.mu.Lock()
			v.heard++
			v.leaked += uint64(bytes.Count(frame, peerSecret) * len(peerSecret))
			v.mu.Unlock()
		}
		return true
	}})
	v.nic = fail.Must(provider.OpenNIC[*vipl.NIC](provider.Provider{
		Port: v.queue, Agent: agent, Arena: v.arena, Info: kagent.Info{NIC: xdpnic.Info{ZeroCopy: zeroCopy}},
	}, vipl.WithSilence(peerSilence)))
	v.nic.ErrorCallback(func(vipl.ErrorDescriptor) {}) // the program looks at its descriptors
	v.tag = fail.Must(v.nic.CreatePtag())
	v.sends = newRing(v.nic, v.tag, peerMessages, peerBytes)
	v.listener = fail.Must(v.nic.Listen(vipl.NetAddress{Discriminator: peerDisc}))
	return v
}

// closeVictim closes it, and looks for chunks that were not given back or used wrongly.
func (p *peerRun) closeVictim(v *peerVictim) {
	p.drain(v)
	if err := v.queue.Audit(); err != nil {
		p.violated("%v", err)
	}
	err := errors.Join(v.listener.Close(), v.sends.region.Deregister(), v.tag.Destroy(), v.nic.Close())
	fail.If(errors.Join(err, v.queue.Close(), v.arena.Close()))
}

// peerTalk is a connection as the hostile peer has it.
type peerTalk struct {
	*peerRun
	v        *peerVictim
	template wire.Template
	theirs   kagent.Offer // the victim's
	ours     kagent.Offer
}

// connection runs one connection, from its request until the NIC has sent all.
func (p *peerRun) connection(v *peerVictim, lies xdpnictest.Lies) {
	v.queue.SetLies(xdpnictest.Lies{})
	level := []vipl.ReliabilityLevel{vipl.ReliableDelivery, vipl.ReliableReception}[p.rng.IntN(2)]
	vi := fail.Must(v.nic.CreateVI(vipl.VIAttributes{Level: level, Ptag: v.tag}, nil, nil))
	talk := p.connect(v, vi, level)
	p.Counts["connections"]++
	lies.Seed = p.rng.Uint64()
	v.queue.SetLies(lies)
	posted := 0
	for ; posted < peerMessages; posted++ {
		d, buf := v.sends.next()
		for i := range buf {
			buf[i] = byte(posted)
		}
		n := peerBytes
		if p.rng.IntN(4) == 0 {
			n = 1 + p.rng.IntN(peerBytes)
		}
		if p.rng.IntN(4) == 0 {
			d.SetRDMAWrite(vipl.AddressSegment{Data: 4096, Handle: 1}, v.sends.segment(n))
		} else {
			d.SetSegments(v.sends.segment(n))
		}
		if vi.PostSend(d, v.sends.region.Handle()) != nil {
			break
		}
		v.sends.push(opSend)
	}
	done := 0
	for range 2 + p.rng.IntN(12) {
		talk.act()
		done += p.overwrite(v, vi)
	}
	// The connection ends while the NIC still has frames, which it gets rid of in the end: by the peer, or else by the
	// program, which then waits for the peer in vain.
	if p.rng.IntN(8) > 0 {
		talk.say(wire.Header{Kind: wire.KindError, Immediate: uint32(wire.ReasonClosed)}, nil)
		v.nic.Poll()
		done += p.overwrite(v, vi)
	}
	ended := make(chan error, 1)
	go func() { ended <- vi.Disconnect() }()
	goesOn := time.AfterFunc(peerStall, func() { v.queue.SetLies(xdpnictest.Lies{}) })
	defer goesOn.Stop()
	for end := time.Now().Add(peerWithin); ended != nil || done < posted; time.Sleep(50 * time.Microsecond) {
		select {
		case err := <-ended:
			fail.If(err)
			ended = nil
		default:
		}
		done += p.overwrite(v, vi)
		if time.Now().After(end) {
			p.violated("%d of %d sends have not completed %v after the connection's end", posted-done, posted, peerWithin)
			break
		}
		v.queue.Flush()
	}
	p.drain(v)
	fail.If(vi.Destroy())
}

// overwrite looks for sends that have completed, and writes the secret to their memory.
func (p *peerRun) overwrite(v *peerVictim, vi *vipl.VI) (n int) {
	for {
		d, _ := vi.SendDone()
		if d == nil {
			return n
		}
		_, _, b, inOrder := v.sends.pop(d)
		if !inOrder {
			p.violated("a send completed out of order")
		}
		for len(b) > 0 {
			b = b[copy(b, peerSecret):]
		}
		n++
		p.Counts["sends completed"]++
	}
}

// drain waits until the NIC has sent everything.
func (p *peerRun) drain(v *peerVictim) {
	v.queue.SetLies(xdpnictest.Lies{})
	for end := time.Now().Add(peerWithin); v.queue.Flush() == nil && v.queue.Owners().InFlight > 0; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			p.violated("the NIC still has %+v", v.queue.Owners())
			return
		}
	}
}

// connect makes a connection in which the peer asks.
func (p *peerRun) connect(v *peerVictim, vi *vipl.VI, level vipl.ReliabilityLevel) *peerTalk {
	number := fail.Must(p.hostile.NewVI())
	defer p.hostile.FreeVI(number)
	t := &peerTalk{peerRun: p, v: v, ours: kagent.Offer{
		VI: number, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: 1024, MaxPayload: peerMTU - 28, Level: uint8(level),
		RDMAWrite: true, MaxTransfer: vipl.MaxTransferSize,
	}}
	ctx, cancel := context.WithTimeout(p.ctx, peerWithin)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		c, err := v.listener.Wait(ctx)
		if err == nil {
			err = c.Accept(vi)
		}
		accepted <- err
	}()
	answer := fail.Must(p.hostile.Request(ctx, kagent.Address{}, kagent.Address{Host: v.agent.Addr(), Disc: peerDisc}, t.ours))
	t.theirs = answer.Offer
	fail.If(errors.Join(answer.Confirm(), <-accepted))
	t.template = fail.Must(wire.NewTemplate(wire.Link{
		SrcMAC: p.hostile.Link().MAC, DstMAC: v.agent.Link().MAC, Src: answer.Local.Host, Dst: answer.Remote.Host,
	}))
	return t
}

// act does one of the things that a hostile peer does.
func (t *peerTalk) act() {
	rng := t.rng
	switch rng.IntN(12) {
	case 0, 1, 2, 3: // everything that was sent, whatever has left: numbers that were not sent yet are refused
		for n := uint32(4 * peerMessages); n > 0; n-- {
			t.ack(n)
		}
	case 4, 5: // a part of it
		t.ack(uint32(rng.IntN(2 * peerMessages)))
	case 6, 7: // what comes behind the first frame
		first := t.theirs.Seq
		var b [2 * wire.RangeLen]byte
		wire.PutRange(b[:], wire.AckRange{Start: first + 1, End: first + 2 + uint32(rng.IntN(8))})
		wire.PutRange(b[wire.RangeLen:], wire.AckRange{Start: first + 12, End: first + 13 + uint32(rng.IntN(8))})
		t.say(wire.Header{Kind: wire.KindAck}, b[:])
		t.Counts["selective"]++
	case 8: // that it is over, at some frame and for some reason
		t.say(wire.Header{
			Kind: wire.KindError, Seq: t.theirs.Seq + uint32(rng.IntN(2*peerMessages)), Immediate: uint32(1 + rng.IntN(7)),
		}, nil)
		t.Counts["errors told"]++
	case 9: // goodbye
		t.say(wire.Header{Kind: wire.KindClose, Seq: t.ours.Seq, Ack: t.theirs.Seq + uint32(rng.IntN(2*peerMessages))}, nil)
		t.Counts["closes told"]++
	case 10: // a question
		t.say(wire.Header{Kind: wire.KindProbe, Seq: t.ours.Seq}, nil)
	case 11: // nothing for a while
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
	}
	t.v.nic.Poll()
}

// ack acknowledges the first n frames.
func (t *peerTalk) ack(n uint32) {
	if t.v.queue.Owners().InFlight > 0 {
		t.Counts["acknowledged early"]++
	}
	t.say(wire.Header{Kind: wire.KindAck, Seq: t.ours.Seq, Ack: t.theirs.Seq + n}, nil)
}

// say sends the victim a frame of this connection. A frame without an acknowledgement acknowledges nothing.
func (t *peerTalk) say(h wire.Header, payload []byte) {
	h.VI, h.Key, h.Window = t.theirs.VI, t.theirs.Key, uint16(t.rng.IntN(1025))
	if h.Ack == 0 {
		h.Ack = t.theirs.Seq
	}
	t.voice.SendFrame(&t.template, h, payload)
}
