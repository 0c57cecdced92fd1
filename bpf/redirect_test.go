package bpf

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// redirectModel returns the baseline's verdict on a frame if the queue has a socket.
func redirectModel(b []byte) uint32 {
	if _, udp, ok := dissect(b); !ok || binary.BigEndian.Uint16(udp[2:]) != DefaultPort {
		return xdpPass
	}
	if tag := binary.BigEndian.Uint16(b[12:]); tag == 0x8100 || tag == 0x88a8 {
		return xdpPass
	}
	return xdpRedirect
}

func loadTestRedirect(t testing.TB, cfg RedirectConfig) *Redirect {
	t.Helper()
	nstest.Require(t)
	r, err := NewRedirect(cfg)
	nstest.Must(t, err)
	closeAtEnd(t, r)
	return r
}

func TestRedirectVerdicts(t *testing.T) {
	for _, frags := range []bool{false, true} {
		t.Run(fmt.Sprintf("frags=%t", frags), func(t *testing.T) {
			r := loadTestRedirect(t, RedirectConfig{Frags: frags})
			check := func(when string, want func(b []byte) uint32) {
				for _, c := range verdicts {
					action, err := r.Program.Run(&ebpf.RunOptions{Data: c.frame})
					nstest.Must(t, err)
					nstest.ErrorIf(t, action != want(c.frame), "%s: %s: action %d, want %d", when, c.name, action, want(c.frame))
				}
			}
			pass := func([]byte) uint32 { return xdpPass }
			check("no socket", pass)
			nstest.Must(t, r.Register(1, rawSocket(t)))
			check("socket of another queue", pass)
			nstest.Must(t, r.Register(0, rawSocket(t)))
			check("socket", redirectModel)
		})
	}
}

func TestRedirectAgreesWithModel(t *testing.T) {
	r := loadTestRedirect(t, RedirectConfig{Frags: true})
	nstest.Must(t, r.Register(0, rawSocket(t)))
	rapid.Check(t, func(t *rapid.T) {
		for range 16 {
			b := drawFrame(t)
			action, err := r.Program.Run(&ebpf.RunOptions{Data: b})
			nstest.Must(t, err)
			if want := redirectModel(b); action != want {
				t.Fatalf("action %d, want %d; frame % x", action, want, b)
			}
		}
	})
}

func TestRedirectPort(t *testing.T) {
	r := loadTestRedirect(t, RedirectConfig{Port: 9, MaxQueues: 2})
	nstest.Must(t, r.Register(0, rawSocket(t)))
	for port, want := range map[uint16]uint32{9: xdpRedirect, DefaultPort: xdpPass, 0x0900: xdpPass} {
		b := with(good4(), func(f *frame) { f.port = port })
		if action, err := r.Program.Run(&ebpf.RunOptions{Data: b}); err != nil || action != want {
			t.Errorf("port %d: action %d, %v; want %d", port, action, err, want)
		}
	}
	if err := r.Register(2, rawSocket(t)); err == nil {
		t.Error("queue past MaxQueues: no error")
	}
	if _, err := NewRedirect(RedirectConfig{MaxQueues: -1}); err == nil {
		t.Error("MaxQueues -1: no error")
	}
}

// longestFuzzed bounds the length of the frames: the program reads only the first 110 bytes.
const longestFuzzed = 256

// The program treats any frame as the model does, and counts it under the model's name.
func FuzzDemux(f *testing.F) {
	d := loadTestDemux(f)
	for _, v := range verdicts {
		if len(v.frame) <= longestFuzzed {
			f.Add(v.frame)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 14 || len(b) > longestFuzzed {
			return // not an Ethernet frame for the kernel's test run, or nothing new
		}
		action, counter := testModel().verdict(b)
		if gotAction, got := run(t, d, b, 0); gotAction != action || got != counter {
			t.Errorf("action %d, counter %q; the model says %d, %q\n%x", gotAction, got, action, counter, b)
		}
	})
}

// The baseline's program treats any frame as its model does.
func FuzzRedirect(f *testing.F) {
	r := loadTestRedirect(f, RedirectConfig{Frags: true})
	nstest.Must(f, r.Register(0, rawSocket(f)))
	for _, v := range verdicts {
		if len(v.frame) <= longestFuzzed {
			f.Add(v.frame)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 14 || len(b) > longestFuzzed {
			return // see FuzzDemux
		}
		action, err := r.Program.Run(&ebpf.RunOptions{Data: b})
		nstest.Must(t, err)
		if want := redirectModel(b); action != want {
			t.Errorf("action %d; the model says %d\n%x", action, want, b)
		}
	})
}
