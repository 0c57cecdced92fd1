package route

import (
	"encoding/binary"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// message is one of rtnetlink, padded.
func message(kind uint16, body ...uint32) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+4*len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, unix.NLMSG_HDRLEN-6)...)
	for _, w := range body {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

// concernsModel says by package syscall's reading whether messages are about an interface, or cannot be
// understood.
func concernsModel(b []byte, index int) bool {
	padded := append(b[:len(b):len(b)], make([]byte, -len(b)&(unix.NLMSG_ALIGNTO-1))...)
	all, err := syscall.ParseNetlinkMessage(padded)
	if err != nil {
		return true
	}
	at := 0
	for _, m := range all {
		if at+int(m.Header.Len) > len(b) {
			return true
		}
		at += (int(m.Header.Len) + 3) / 4 * 4
		switch m.Header.Type {
		case syscall.RTM_NEWLINK, syscall.RTM_DELLINK, syscall.RTM_NEWADDR, syscall.RTM_DELADDR:
			if len(m.Data) < 8 || int32(binary.NativeEndian.Uint32(m.Data[4:8])) == int32(index) {
				return true
			}
		}
	}
	return at < len(b) // something is left that is no message
}

func concerns(b []byte, index int) (yes bool) {
	eachAbout(b, index, func(uint16, []byte) { yes = true })
	return yes
}

// Messages of the kernel are about an interface where a reader of their own says so, and where they are cut
// short: a change is never overlooked.
func FuzzConcerns(f *testing.F) {
	of := func(index uint32) []byte { return message(unix.RTM_NEWLINK, 0, index, 0, 0) }
	for _, b := range [][]byte{
		nil, of(7), of(8), append(of(8), of(7)...), append(of(8), of(7)[:19]...), append(of(8), 1, 2, 3),
		message(unix.RTM_DELADDR, 2, 7), message(unix.RTM_NEWADDR, 2), message(unix.RTM_NEWROUTE, 0, 7),
		append(message(unix.NLMSG_DONE), message(unix.RTM_DELLINK, 0, 7)...),
	} {
		f.Add(b, int32(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, index int32) {
		if got, want := concerns(b, int(index)), concernsModel(b, int(index)); got != want {
			t.Fatalf("% x concerns %d: %v, want %v", b, index, got, want)
		}
		if whole := append(of(uint32(index)+1), of(uint32(index))...); concerns(of(uint32(index)+1), int(index)) || !concerns(whole, int(index)) {
			t.Fatalf("interface %d", index)
		}
	})
}

// A message that an interface was removed is one of the interface itself, and not of its place in a bridge.
func TestSaysGone(t *testing.T) {
	for _, c := range []struct {
		kind   uint16
		family byte
		gone   bool
	}{
		{unix.RTM_DELLINK, unix.AF_UNSPEC, true}, {unix.RTM_DELLINK, unix.AF_BRIDGE, false}, {unix.RTM_NEWLINK, unix.AF_UNSPEC, false},
	} {
		said, about := false, 0
		m := message(c.kind, 0, 7)
		m[unix.NLMSG_HDRLEN] = c.family
		eachAbout(m, 7, func(kind uint16, body []byte) {
			about++
			said = said || saysGone(kind, body)
		})
		if about != 1 || said != c.gone {
			t.Errorf("%+v: gone is %v, by %d messages", c, said, about)
		}
	}
}
