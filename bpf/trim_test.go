package bpf

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// Of a packet with the mark the program takes the bytes behind the Ethernet header, and the mark. Others stay as they are.
func TestTrim(t *testing.T) {
	nstest.Require(t)
	const mark, n = 0xfeed0001, 256 // its sign bit counts for nothing
	trim := attachTestTrim(t, mark, n)
	ether := append(bytes.Repeat([]byte{2}, 12), 0x08, 0x00)
	packet := append([]byte{0x45}, bytes.Repeat([]byte{7}, 99)...)
	long := bytes.Join([][]byte{ether, make([]byte, n), packet}, nil)
	arp := bytes.Clone(long)
	arp[13] = 0x06
	short := bytes.Join([][]byte{ether, make([]byte, n)}, nil)
	for _, c := range []struct {
		name   string
		mark   uint32
		in     []byte
		action uint32
		out    []byte
	}{
		{"marked", mark, long, 0xffffffff, bytes.Join([][]byte{ether, packet}, nil)},
		{"not marked", 0, long, 0xffffffff, long},
		{"another mark", mark + 1, long, 0xffffffff, long},
		{"the lower bits alone", mark & 0x7fffffff, long, 0xffffffff, long},
		{"no IP", mark, arp, tcxDrop, arp},
		{"too short", mark, short, tcxDrop, short},
	} {
		out := make([]byte, len(c.in)+512)
		context := make([]byte, 192) // struct __sk_buff
		context[8], context[9], context[10], context[11] = byte(c.mark), byte(c.mark>>8), byte(c.mark>>16), byte(c.mark>>24)
		left := make([]byte, len(context))
		o := &ebpf.RunOptions{Data: c.in, DataOut: out, Context: context, ContextOut: left}
		action, err := trim.program.Run(o)
		nstest.Must(t, err)
		nstest.ErrorIf(t, action != c.action || !bytes.Equal(o.DataOut, c.out),
			"%s: action %#x, %d bytes, want %#x, %d", c.name, action, len(o.DataOut), c.action, len(c.out))
		marked := !bytes.Equal(left[8:12], make([]byte, 4))
		nstest.ErrorIf(t, marked != (c.mark != 0 && c.mark != mark), "%s: the mark is left: %t", c.name, marked)
	}
}

// An error names the interface.
func TestTrimErrors(t *testing.T) {
	nstest.Require(t)
	_, err := AttachTrim(1<<30, 1, 256)
	var e *Error
	nstest.ErrorIf(t, !errors.As(err, &e) || !errors.Is(err, unix.ENODEV), "no such interface: %v", err)
}

func attachTestTrim(t *testing.T, mark uint32, n int) *Trim {
	t.Helper()
	ns, _ := nstest.Pair(t, nstest.Options{})
	var trim *Trim
	nstest.Must(t, ns.Do(func() (err error) {
		trim, err = AttachTrim(ns.Index, mark, n)
		if errors.Is(err, ebpf.ErrNotSupported) {
			nstest.Lacks(t, "%v", err)
		}
		return err
	}))
	closeAtEnd(t, trim)
	return trim
}
