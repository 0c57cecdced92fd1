package vipl_test

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/hugepages"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// others is the rest of an arena, which the program uses for something else: no frame may have any of it.
type others struct {
	regions []*vipl.Region
	used    bool // that of somebody else's memory something has left, or arrived; under the wire's lock
}

const foreign = "memory of somebody else"

// watch has every frame that h sends looked at.
func (o *others) watch(h *memoryHost) {
	h.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
		o.used = o.used || bytes.Contains(frame, []byte(foreign))
		return false
	}})
}

// take allocates all that there is in pieces of size, and fills it. It counts those that overlap mine.
func (o *others) take(t *testing.T, n *vipl.Nic, tag *vipl.Ptag, size int, mine []byte) (overlap int) {
	t.Helper()
	for {
		r, err := n.AllocMem(size, vipl.MemAttributes{Ptag: tag})
		if err != nil {
			return overlap
		}
		copy(r.Bytes(), bytes.Repeat([]byte(foreign), size/len(foreign)))
		if &r.Bytes()[0] == &mine[0] {
			overlap++
		}
		o.regions = append(o.regions, r)
	}
}

func (o *others) give(t *testing.T) {
	t.Helper()
	for _, r := range o.regions {
		if err := r.Deregister(); err != nil {
			t.Error(err)
		}
	}
	o.regions = nil
}

// books is what an arena has given out.
func books(a *hugepages.Arena) [2]int {
	s := a.Stats()
	return [2]int{s.Blocks, s.Free}
}

// Memory of which a frame is lent to the kernel, on the ring or until the peer has it, stays registered: Deregister says
// that it is in use, nobody else gets the memory, and what arrives is what was sent. When the send is done
// it goes, whether the peer has the message or the connection has ended.
func TestDeregisterLentMemory(t *testing.T) {
	for _, where := range []lentWhere{
		{
			"on the ring",
			func(n *memoryNet) { n.a.queue.SetLies(xdpnictest.Lies{Stall: 1}) },
			func(n *memoryNet) { n.a.queue.SetLies(xdpnictest.Lies{}) },
			func(n *memoryNet) bool { return n.a.queue.Pending() > 0 },
		},
		{
			"lost",
			func(n *memoryNet) { n.b.queue.Cut(true) },
			func(n *memoryNet) { n.b.queue.Cut(false) },
			func(n *memoryNet) bool { return n.a.queue.Pending() == 0 },
		},
	} {
		for _, write := range []bool{false, true} {
			for _, ends := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,write=%v,ends=%v", where.name, write, ends), func(t *testing.T) {
					eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
						synctest.Test(t, func(t *testing.T) { deregisterLent(t, level, where, write, ends) })
					})
				})
			}
		}
	}
}

// lentWhere is how to keep a frame there.
type lentWhere struct {
	name          string
	hold, release func(n *memoryNet)
	held          func(n *memoryNet) bool
}

// deregisterLent does it with a send, or a write; ends: the peer ends the connection before it has the message.
func deregisterLent(t *testing.T, level vipl.ReliabilityLevel, where lentWhere, write, ends bool) {
	const size = 32 << 10
	c := longFrames
	c.bubble, c.arena, c.silence = true, 4<<20, time.Second // by which a may learn of the end
	n, va, vb, xa, xb := rdmaPair(t, c, level)
	var o others
	o.watch(n.a)
	tag := mustTag(t, n.a.Nic)
	before := books(n.a.arena)
	data, err := n.a.AllocMem(size, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	busy := func(when string) {
		t.Helper()
		wantError(t, when, data.Deregister(), vipl.ErrResource)
		wantError(t, when, tag.Destroy(), vipl.ErrResource)
	}
	postRecv(t, vb, xb, 0, size)
	where.hold(n)
	fillPattern(data.Bytes(), 1)
	xa.desc[0].SetSegments(data.Segment(0, size))
	if write {
		xa.desc[0].SetRDMAWrite(xb.remote(0), data.Segment(0, size))
	}
	postDesc(t, va, xa, 0)
	if n.a.Counters().Lent == 0 || !where.held(n) {
		t.Fatalf("nothing lent is %s: %+v", where.name, n.a.Counters())
	}
	busy("lent")
	if k := o.take(t, n.a.Nic, tag, size, data.Bytes()); k > 0 || len(o.regions) == 0 {
		t.Errorf("of %d blocks %d are the lent one", len(o.regions), k)
	}
	busy("lent, and nothing else is free")
	if ends {
		if err := vb.Disconnect(); err != nil {
			t.Fatal(err)
		}
	}
	where.release(n)
	want := vipl.Status(0)
	if write {
		want = vipl.StatusOpRDMAWrite
	}
	d, err := va.SendWait(patience)
	if d != xa.desc[0] || !ends && (err != nil || d.Status() != want|vipl.StatusDone) {
		t.Fatalf("%v, %v", d, err)
	}
	if !ends {
		checkPattern(t, xb.buf[0][:size], 1)
	}
	if err := data.Deregister(); err != nil {
		t.Errorf("done: %v", err)
	}
	o.give(t)
	if err := tag.Destroy(); err != nil {
		t.Error(err)
	}
	if now := books(n.a.arena); now != before {
		t.Errorf("blocks and bytes of the arena: %v, before %v", now, before)
	}
	synctest.Wait()
	if o.used {
		t.Error("what was sent is somebody else's memory")
	}
}

// Memory that a peer reads is in no descriptor of its program, which may deregister it at any time: not a byte more is
// read, what becomes of the memory is not seen, and the read ends as one of memory that is not open.
func TestDeregisterWhileThePeerReads(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			c := longFrames
			c.bubble, c.queue.RxChunks = true, 64 // so that the reader's window closes in the middle
			n, va, vb, xa, _ := rdmaPair(t, c, level)
			var o others
			o.watch(n.b)
			tag := mustTag(t, n.b.Nic)
			before := books(n.b.arena)
			data, err := n.b.AllocMem(boxSize, vipl.MemAttributes{Ptag: tag, EnableRdmaRead: true})
			if err != nil {
				t.Fatal(err)
			}
			fillPattern(data.Bytes(), 1)
			n.a.queue.SetFaults(xdpnictest.Faults{Delay: 10 * time.Millisecond}) // and stays closed for a while
			xa.desc[0].SetRDMARead(data.Remote(0), segment(xa, 0, boxSize))
			postDesc(t, va, xa, 0)
			time.Sleep(11 * time.Millisecond) // the request is there, and a part of the answer under way
			mine := data.Bytes()
			if s := n.b.Counters(); s.Reads > 0 || n.b.queue.Stats().TxFrames == 0 {
				t.Fatalf("the answer is not under way: %+v", s)
			}
			if err := data.Deregister(); err != nil {
				t.Fatal(err)
			}
			if now := books(n.b.arena); now != before {
				t.Errorf("blocks and bytes of the arena: %v, before %v", now, before)
			}
			if o.take(t, n.b.Nic, tag, boxSize, mine) != 1 {
				t.Error("nobody else has got the memory")
			}
			sent(t, va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError)
			stateIs(t, va, vipl.Error)
			stateIs(t, vb, vipl.Error)
			n.b.errs.are(t, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)
			if s := n.b.Counters(); s.RDMARefused != 1 || s.Reads != 0 {
				t.Errorf("%+v", s)
			}
			synctest.Wait()
			if o.used || bytes.Contains(xa.buf[0], []byte(foreign)) {
				t.Error("the peer was told of somebody else's memory")
			}
			o.give(t)
			if now := books(n.b.arena); now != before {
				t.Errorf("blocks and bytes of the arena: %v, before %v", now, before)
			}
		})
	})
}
