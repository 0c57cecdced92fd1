//go:build asavie

package xdpnic

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/asavie/xdp"

	"viaxdp/internal/lab/nstest"
)

func init() { programs[asPeer] = peerMain }

// asPeer is the other end on xdp.Socket of github.com/asavie/xdp, which shares no code with this package: "peer echo
// IFINDEX" sends back what it gets, "peer first IFINDEX" sends a frame before that.
const asPeer = "peer"

func peerMain() error {
	nstest.EndWithTest()
	ifindex, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	r, err := attachRedirect(ifindex, true, false)
	if err != nil {
		return err
	}
	defer r.close()
	s, err := xdp.NewSocket(ifindex, 0, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := r.xsks.Put(uint32(0), uint32(s.FD())); err != nil {
		return err
	}
	s.Fill(s.GetDescs(32))
	fmt.Println("ready")
	if os.Args[2] == "first" {
		d := s.GetDescs(1)
		d[0].Len = 300
		frame := s.GetFrame(d[0])
		copy(frame, bytes.Repeat([]byte{0xff}, 12))
		frame[12], frame[13] = etherType>>8, etherType&0xff
		fillPattern(frame[14:], 42)
		s.Transmit(d)
	}
	for {
		n, _, err := s.Poll(-1)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		descs := s.Receive(n)
		for _, d := range descs {
			f := s.GetFrame(d)
			var mac [6]byte
			copy(mac[:], f[:6])
			copy(f[:6], f[6:12])
			copy(f[6:12], mac[:])
		}
		s.Transmit(descs)
		s.Complete(s.NumCompleted())
		if free := 32 - s.NumFilled(); free > 0 {
			s.Fill(s.GetDescs(free))
		}
	}
}

// startPeer runs the test binary as the other end in a namespace.
func startPeer(t *testing.T, ns *nstest.NS, kind string) {
	t.Helper()
	_, line := nstest.Spawn(t, ns.Do, asPeer, kind, strconv.Itoa(ns.Index))
	nstest.FatalIf(t, line != "ready", "the peer says %q", line)
}

// Frames pass between a Queue and an independent implementation, whichever
// begins, in any size, singly and in batches.
func TestInteroperability(t *testing.T) {
	t.Run("queue begins", func(t *testing.T) {
		na, nb := nstest.Pair(t, nstest.Options{})
		a := openEnd(t, na, pairOptions{generic: true})
		startPeer(t, nb, "echo")
		b := &end{ns: nb}
		for i := range 100 {
			n := 14 + i*15
			a.mustSend(t, b, n, byte(i))
			data, _ := receive(t, a.q)
			wantPattern(t, data, n, byte(i))
		}
		const batch = 16
		for i := range batch {
			addr, buf, _ := a.q.Alloc()
			header(buf, nb, na)
			fillPattern(buf[14:64], byte(i))
			a.q.Send(addr, 64, false)
		}
		nstest.Must(t, a.q.Flush())
		for i := range batch {
			data, _ := receive(t, a.q)
			wantPattern(t, data, 64, byte(i))
		}
		eventually(t, "completions", func() bool { a.q.Reap(); return a.q.TxFree() == DefaultChunks })
		audit(t, a.q)
	})
	t.Run("other begins", func(t *testing.T) {
		na, nb := nstest.Pair(t, nstest.Options{})
		a := openEnd(t, na, pairOptions{generic: true})
		startPeer(t, nb, "first")
		data, _ := receive(t, a.q)
		wantPattern(t, data, 300, 42)
	})
}
