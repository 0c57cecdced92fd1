package vipl_test

import (
	"bytes"
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
)

// ends opens a NIC at both ends of a veth pair.
func ends(t testing.TB, o nstest.Options, opts ...vipl.Option) (a, b *vipl.Nic) {
	t.Helper()
	na, nb := nstest.Pair(t, o)
	nics := make([]*vipl.Nic, 2)
	for i, ns := range []*nstest.NS{na, nb} {
		if err := ns.Do(func() (err error) {
			nics[i], err = vipl.OpenNic(ns.Name, append([]vipl.Option{vipl.WithSilence(time.Minute)}, opts...)...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nics[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return nics[0], nics[1]
}

// box is memory with descriptors, each with its buffer.
type box struct {
	region *vipl.Region
	desc   []*vipl.Descriptor
	buf    [][]byte
	segs   []vipl.DataSegment
}

func newBox(t testing.TB, n *vipl.Nic, count, size int) *box {
	t.Helper()
	tag, err := n.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	return newBoxTagged(t, n, tag, count, (size+63)&^63)
}

// connect makes a connected pair of VIs.
func connect(t testing.TB, a, b *vipl.Nic, level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	var err error
	if va, err = a.CreateVi(vipl.ViAttributes{Level: level}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if vb, err = b.CreateVi(vipl.ViAttributes{Level: level}, nil, nil); err != nil {
		t.Fatal(err)
	}
	join(t, a, va, b, vb)
	return va, vb
}

func join(t testing.TB, a *vipl.Nic, va *vipl.VI, b *vipl.Nic, vb *vipl.VI) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		c, err := b.ConnectWait(vipl.NetAddress{Discriminator: []byte("test")}, patience)
		if err == nil {
			err = c.Accept(vb)
		}
		done <- err
	}()
	var err error
	if !comes(func() bool { // the other goroutine may not wait yet: "no match"
		_, err = va.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: b.Query().Address, Discriminator: []byte("test")}, patience)
		return err == nil
	}) {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestPingPong(t *testing.T) {
	for _, level := range []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception} {
		t.Run(level.String(), func(t *testing.T) {
			// An unreliable megabyte comes at once, before anybody looks.
			a, b := ends(t, nstest.Options{})
			va, vb := connect(t, a, b, level)
			for _, size := range []int{0, 1, 64, 1424, 1425, 65536, vipl.MaxTransferSize} {
				ba, bb := newBox(t, a, 2, max(size, 1)), newBox(t, b, 2, max(size, 1))
				for i := range ba.buf[0] {
					ba.buf[0][i] = byte(i * 7)
				}
				post := func(v *vipl.VI, x *box, i int, send bool) {
					t.Helper()
					seg := x.segs[i]
					seg.Length = uint32(size)
					x.desc[i].SetSegments(seg)
					var err error
					if send {
						err = v.PostSend(x.desc[i], x.region.Handle())
					} else {
						err = v.PostRecv(x.desc[i], x.region.Handle())
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				post(vb, bb, 0, false)
				post(va, ba, 1, false)
				post(va, ba, 0, true)
				if d, err := vb.RecvWait(patience); err != nil || d != bb.desc[0] {
					t.Fatalf("%d bytes: %v %v", size, err, d)
				}
				if !bytes.Equal(bb.buf[0][:size], ba.buf[0][:size]) || int(bb.desc[0].Length) != size {
					t.Fatalf("%d bytes: other bytes, length %d", size, bb.desc[0].Length)
				}
				copy(bb.buf[1], bb.buf[0])
				post(vb, bb, 1, true)
				if _, err := va.RecvWait(patience); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(ba.buf[1][:size], ba.buf[0][:size]) {
					t.Fatalf("%d bytes: other bytes back", size)
				}
				for _, v := range []*vipl.VI{va, vb} {
					if _, err := v.SendWait(patience); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Logf("%+v", a.Counters())
			if err := va.Disconnect(); err != nil {
				t.Fatal(err)
			}
			stateIs(t, vb, vipl.Error)
		})
	}
}
