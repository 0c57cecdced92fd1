//go:build asavie

package xdpnic

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/asavie/xdp"

	"viaxdp/internal/lab/nstest"
)

func init() { peerMain = xdpMain }

// xdpMain is the other end on xdp.Socket of github.com/asavie/xdp, which
// shares no code with this package. "echo" sends back what it gets, "first"
// sends a frame before that. It ends when its standard input does.
func xdpMain(role string) int {
	var kind string
	var ifindex int
	if _, err := fmt.Sscan(role, &kind, &ifindex); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := peer(kind == "first", ifindex); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func peer(first bool, ifindex int) error {
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
	if first {
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
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerEnv+"="+kind+" "+strconv.Itoa(ns.Index))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	nstest.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	nstest.Must(t, err)
	// A process starts in the namespace of the thread that forks it.
	nstest.Must(t, ns.Do(cmd.Start))
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("peer: %q, %v", line, err)
	}
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
