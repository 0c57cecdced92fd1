package vipl_test

import (
	"errors"
	"math"
	"testing"

	"viaxdp/vipl"
)

// wrongs are descriptors with one thing wrong, and the status that tells.
var wrongs = []struct {
	name   string
	spoil  func(d *vipl.Descriptor, x *box, other *vipl.Region)
	status vipl.Status
	sends  bool // wrong as a send
	recvs  bool // wrong as a receive
}{
	{"reserved field", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Reserved = 1 }, vipl.StatusFormatError, true, true},
	{"reserved bit", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Control |= 0x8000 }, vipl.StatusFormatError, true, true},
	{"operation 3", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Control |= 3 }, vipl.StatusFormatError, true, true},
	{"253 segments", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.SegCount = 253 }, vipl.StatusFormatError, true, true},
	{"65535 segments", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.SegCount = 65535 }, vipl.StatusFormatError, true, true},
	{"fence bit of a receive", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Control |= vipl.ControlQFence }, vipl.StatusFormatError, false, true},
	{"handle 0", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Segment(0).Handle = 0 }, vipl.StatusProtectionError, true, true},
	{"unknown handle", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Segment(0).Handle ^= 0x5a5a5a5a }, vipl.StatusProtectionError, true, true},
	{"another PTag's memory", func(d *vipl.Descriptor, x *box, o *vipl.Region) { *d.Segment(0) = o.Segment(0, 64) }, vipl.StatusProtectionError, true, true},
	{"begins one before", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Segment(0).Data = x.region.Addr() - 1 }, vipl.StatusProtectionError, true, true},
	{"ends one behind", func(d *vipl.Descriptor, x *box, _ *vipl.Region) {
		d.Segment(0).Data = x.region.Addr() + uint64(len(x.region.Bytes())) - 63
	}, vipl.StatusProtectionError, true, true},
	{"wraps around", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Segment(0).Data = ^uint64(0) - 10 }, vipl.StatusProtectionError, true, true},
	{"null", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Segment(0).Data = 0 }, vipl.StatusProtectionError, true, true},
	{"length too small", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Length-- }, vipl.StatusLengthError, true, false},
	{"length too large", func(d *vipl.Descriptor, x *box, _ *vipl.Region) { d.Length++ }, vipl.StatusLengthError, true, false},
	{"longer than the VI's maximum", func(d *vipl.Descriptor, x *box, _ *vipl.Region) {
		d.SetSegments(x.region.Segment(0, 40_001))
	}, vipl.StatusLengthError, true, false},
}

// wrongNet has VIs with a PTag of their own on a and memory of another PTag.
func wrongNet(t *testing.T, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, xa, xb *box, other *vipl.Region) {
	n = newMemoryNet(t, memoryConfig{})
	tag, err := n.a.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	attrs := vipl.ViAttributes{Level: level, MaxTransferSize: 40_000}
	if vb, err = n.b.CreateVi(attrs, nil, nil); err != nil {
		t.Fatal(err)
	}
	attrs.Ptag = tag
	if va, err = n.a.CreateVi(attrs, nil, nil); err != nil {
		t.Fatal(err)
	}
	xa, xb = newBoxTagged(t, n.a.Nic, tag, 8, 8192), newBox(t, n.b.Nic, 8, 8192)
	otherTag, _ := n.a.CreatePtag()
	if other, err = n.a.AllocMem(4096, vipl.MemAttributes{Ptag: otherTag}); err != nil {
		t.Fatal(err)
	}
	join(t, n.a.Nic, va, n.b.Nic, vb)
	return n, va, vb, xa, xb, other
}

// newBoxTagged is newBox with memory of a given tag.
func newBoxTagged(t testing.TB, n *vipl.Nic, tag *vipl.Ptag, count, size int) *box {
	t.Helper()
	b := &box{}
	var err error
	if b.region, err = n.AllocMem(count*(64+size), vipl.MemAttributes{Ptag: tag}); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		d, err := b.region.Descriptor(i*64, 1)
		if err != nil {
			t.Fatal(err)
		}
		off := count*64 + i*size
		b.desc = append(b.desc, d)
		b.buf = append(b.buf, b.region.Bytes()[off:off+size])
		b.segs = append(b.segs, b.region.Segment(off, size))
	}
	return b
}

// A send with wrong contents completes in error, after those before it. An
// unreliable VI goes on, a reliable one breaks.
func TestWrongSends(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, w := range wrongs {
			if !w.sends {
				continue
			}
			t.Run(w.name, func(t *testing.T) {
				_, va, vb, xa, xb, other := wrongNet(t, level)
				postRecv(t, vb, xb, 0, 64)
				postRecv(t, vb, xb, 1, 64)
				postSend(t, va, xa, 0, 64)
				xa.prepare(1, 64)
				w.spoil(xa.desc[1], xa, other)
				if err := va.PostSend(xa.desc[1], xa.region.Handle()); err != nil {
					t.Fatal(err)
				}
				received(t, vb, 0)
				sent(t, va, 0)
				sent(t, va, w.status)
				if level == vipl.UnreliableDelivery {
					postSend(t, va, xa, 2, 64)
					sent(t, va, 0)
					received(t, vb, 0)
					return
				}
				stateIs(t, va, vipl.Error)
				stateIs(t, vb, vipl.Error)
				received(t, vb, vipl.StatusFlushed)
				postSend(t, va, xa, 2, 64)
				sent(t, va, vipl.StatusFlushed)
			})
		}
	})
}

// A wrong receive completes in error when it gets to the head.
func TestWrongReceives(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, w := range wrongs {
			if !w.recvs {
				continue
			}
			t.Run(w.name, func(t *testing.T) {
				_, va, vb, xa, xb, other := wrongNet(t, level)
				postRecv(t, va, xa, 0, 64)
				xa.prepare(1, 64)
				w.spoil(xa.desc[1], xa, other)
				if err := va.PostRecv(xa.desc[1], xa.region.Handle()); err != nil {
					t.Fatal(err)
				}
				postRecv(t, va, xa, 2, 64)
				if _, err := va.RecvDone(); err != vipl.ErrNotDone {
					t.Errorf("done before it is at the head: %v", err)
				}
				postSend(t, vb, xb, 0, 64)
				received(t, va, 0)
				received(t, va, w.status)
				if level == vipl.UnreliableDelivery {
					postSend(t, vb, xb, 0, 64)
					received(t, va, 0)
					return
				}
				received(t, va, vipl.StatusFlushed)
				stateIs(t, va, vipl.Error)
				stateIs(t, vb, vipl.Error)
				// The message before was delivered: its send must not say otherwise.
				sent(t, vb, 0)
			})
		}
	})
}

// In Idle a wrong receive completes at once when it is at the head.
func TestWrongReceiveInIdle(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	v := newVI(t, n.a.Nic, vipl.ReliableDelivery)
	x := newBox(t, n.a.Nic, 1, 64)
	x.prepare(0, 64)
	x.desc[0].Reserved = 1
	if err := v.PostRecv(x.desc[0], x.region.Handle()); err != nil {
		t.Fatal(err)
	}
	d, err := v.RecvDone()
	checkDone(t, "receive", d, err, vipl.StatusFormatError|vipl.StatusOpReceive)
	stateIs(t, v, vipl.Idle)
}

// What is wrong with the descriptor itself is refused, and nothing is queued.
func TestRefusedDescriptors(t *testing.T) {
	n, va, _, xa, _, other := wrongNet(t, vipl.ReliableDelivery)
	h := xa.region.Handle()
	tail, err := xa.region.Descriptor(len(xa.region.Bytes())-64, 2)
	if err != nil {
		t.Fatal(err)
	}
	tail.SegCount = 3 // the third would lie behind the region
	foreign, err := other.Descriptor(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		d    *vipl.Descriptor
		h    vipl.MemHandle
	}{
		{"nil", nil, h},
		{"unaligned", misaligned(xa.region), h},
		{"handle 0", xa.desc[0], 0},
		{"wrong handle", xa.desc[0], h ^ 0x1234567},
		{"handle of other memory", xa.desc[0], other.Handle()},
		{"memory not registered", new(vipl.Descriptor), h},
		{"other tag", foreign, other.Handle()},
		{"segments behind the region", tail, h},
	} {
		for _, post := range []func(*vipl.Descriptor, vipl.MemHandle) error{va.PostSend, va.PostRecv} {
			if err := post(c.d, c.h); !errors.Is(err, vipl.ErrInvalidParameter) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	s := stateIs(t, va, vipl.Connected)
	if !s.SendEmpty || !s.RecvEmpty {
		t.Error("something was queued")
	}
	for _, c := range []struct{ off, segs int }{{-64, 1}, {1, 1}, {0, 254}, {0, -1}, {len(xa.region.Bytes()), 1}, {len(xa.region.Bytes()) - 64, 3}, {math.MaxInt &^ 63, 1}} {
		if _, err := xa.region.Descriptor(c.off, c.segs); !errors.Is(err, vipl.ErrInvalidParameter) {
			t.Errorf("descriptor at %d with %d segments: %v", c.off, c.segs, err)
		}
	}
	for _, size := range []int{0, -1} {
		_, err := n.a.AllocMem(size, vipl.MemAttributes{Ptag: mustTag(t, n.a.Nic)})
		wantError(t, "memory of no bytes", err, vipl.ErrInvalidParameter)
	}
	gone, err := n.a.AllocMem(4096, vipl.MemAttributes{Ptag: mustTag(t, n.a.Nic)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := gone.Descriptor(0, 1)
	was := gone.Handle()
	if err := gone.Deregister(); err != nil {
		t.Fatal(err)
	}
	wantError(t, "deregistered", va.PostSend(d, was), vipl.ErrInvalidParameter)
}

func mustTag(t testing.TB, n *vipl.Nic) *vipl.Ptag {
	t.Helper()
	tag, err := n.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// A program that changes a posted descriptor harms nobody.
func TestPostedDescriptorChanged(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		xa, xb := newBox(t, n.a.Nic, 1, 5000), newBox(t, n.b.Nic, 1, 5000)
		postRecv(t, vb, xb, 0, 5000)
		d := xb.desc[0]
		d.SegCount, d.Length, d.Reserved, d.Control = 65535, 1<<31, 7, 0xffff
		*d.Segment(0) = vipl.DataSegment{Data: 1, Handle: 2, Length: 1 << 31}
		fillPattern(xa.buf[0], 3)
		postSend(t, va, xa, 0, 5000)
		if d := received(t, vb, 0); d.Length != 5000 {
			t.Errorf("length %d", d.Length)
		}
		checkPattern(t, xb.buf[0][:5000], 3)
		sent(t, va, 0)
	})
}
