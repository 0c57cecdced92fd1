package bpf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// xdpMD is struct xdp_md (linux/bpf.h), the context of a test run.
type xdpMD struct {
	Data, DataEnd, DataMeta    uint32
	Ifindex, Queue, EgressIfix uint32
}

// loadTestDemux loads a demux program with the test VIs and one socket.
func loadTestDemux(t testing.TB) *Demux {
	t.Helper()
	d := load(t, Config{MaxVIs: testVIs, MaxSockets: testSockets})
	for num, e := range testTable {
		nstest.Must(t, d.EnterVI(num, e))
	}
	nstest.Must(t, d.Register(slotSocket, rawSocket(t)))
	return d
}

// load loads a demux program for the time of a test.
func load(t testing.TB, cfg Config) *Demux {
	t.Helper()
	nstest.Require(t)
	d, err := LoadDemux(cfg)
	nstest.Must(t, err)
	closeAtEnd(t, d)
	return d
}

func closeAtEnd(t testing.TB, c io.Closer) {
	t.Cleanup(func() {
		nstest.WantErr(t, "close", c.Close(), nil)
	})
}

// rawSocket is an AF_XDP socket without anything: enough for a slot.
func rawSocket(t testing.TB) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	nstest.FatalIf(t, err != nil, "AF_XDP socket: %v", err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func testModel() *model {
	return &model{table: testTable, size: testVIs, sockets: map[uint32]bool{slotSocket: true}}
}

// run returns the program's verdict on a frame, and the counters that changed. linear is the length of the frame's
// linear part; 0: all of it.
func run(t testing.TB, d *Demux, b []byte, linear int) (action uint32, moved string) {
	t.Helper()
	before := counters(t, d)
	opts := ebpf.RunOptions{Data: b, DataOut: make([]byte, len(b)+64)}
	if linear > 0 {
		opts.Context = xdpMD{DataEnd: uint32(linear)}
	}
	action, err := d.Program.Run(&opts)
	nstest.FatalIf(t, err != nil, "test run of %d bytes: %v", len(b), err)
	if !bytes.Equal(opts.DataOut, b) {
		t.Errorf("the program changed the frame:\n%s", cmp.Diff(b, opts.DataOut))
	}
	return action, difference(before, counters(t, d))
}

// runOn is the same for a frame that arrived on a queue of an interface of the thread's namespace (interface 0,
// queue 0: unspecified).
func runOn(d *Demux, b []byte, ifindex, queue uint32) (action uint32, moved string, err error) {
	before, err := d.Counters()
	if err != nil {
		return 0, "", err
	}
	action, err = d.Program.Run(&ebpf.RunOptions{
		Data: b, Context: xdpMD{DataEnd: uint32(len(b)), Ifindex: ifindex, Queue: queue},
	})
	if err != nil {
		return 0, "", err
	}
	after, err := d.Counters()
	return action, difference(before, after), err
}

func counters(t testing.TB, d *Demux) Counters {
	t.Helper()
	c, err := d.Counters()
	nstest.Must(t, err)
	return c
}

// difference returns the names of the counters that changed, with the number if it is not 1.
func difference(before, after Counters) string {
	old := map[string]uint64{}
	before.Each(func(name string, v uint64) { old[name] = v })
	var moved []string
	after.Each(func(name string, v uint64) {
		switch n := v - old[name]; n {
		case 0:
		case 1:
			moved = append(moved, name)
		default:
			moved = append(moved, fmt.Sprintf("%s %+d", name, int64(n)))
		}
	})
	return strings.Join(moved, " ")
}

// with returns a valid frame with changes.
func with(f frame, change func(*frame)) []byte {
	change(&f)
	return f.bytes()
}

// Frames and their outcomes. An empty counter means: not ours.
var verdicts = []struct {
	name    string
	frame   []byte
	action  uint32
	counter string
}{
	// What is for a socket.
	{"IPv4", good4().bytes(), xdpRedirect, "redirected"},
	{"IPv6", good6().bytes(), xdpRedirect, "redirected"},
	{"IPv4 with payload", with(good4(), func(f *frame) { f.payload = 1400 }), xdpRedirect, "redirected"},
	{"several pages", with(good4(), func(f *frame) { f.payload = 8800 }), xdpRedirect, "redirected"},
	{"802.1Q, IPv4", with(good4(), func(f *frame) { f.tags = []uint16{0x8100} }), xdpRedirect, "redirected"},
	{"802.1Q, IPv6", with(good6(), func(f *frame) { f.tags = []uint16{0x8100} }), xdpRedirect, "redirected"},
	{"802.1ad, IPv4", with(good4(), func(f *frame) { f.tags = []uint16{0x88a8} }), xdpRedirect, "redirected"},
	{"first index", with(good4(), func(f *frame) { f.vi = viFirst }), xdpRedirect, "redirected"},
	{"kind unknown to the program", with(good4(), func(f *frame) { f.kind = 0x7f }), xdpRedirect, "redirected"},
	{"don't fragment not set", with(good4(), func(f *frame) { f.fragment = 0x8000 }), xdpRedirect, "redirected"},

	// What is for the kernel.
	{"ARP", arp(), xdpPass, ""},
	{"neighbour discovery", with(good6(), func(f *frame) { f.next = unix.IPPROTO_ICMPV6 }), xdpPass, ""},
	{"ping", with(good4(), func(f *frame) { f.next = unix.IPPROTO_ICMP }), xdpPass, ""},
	{"TCP on IPv4", with(good4(), func(f *frame) { f.next = unix.IPPROTO_TCP }), xdpPass, ""},
	{"TCP on IPv6", with(good6(), func(f *frame) { f.next = unix.IPPROTO_TCP }), xdpPass, ""},
	{"another port", with(good4(), func(f *frame) { f.port = 53 }), xdpPass, ""},
	{"a queue's port", with(good4(), func(f *frame) { f.port = DefaultPort + 1 }), xdpRedirect, "redirected"},
	{"the last queue's port, IPv6", with(good6(), func(f *frame) { f.port = DefaultPort + wire.Ports - 1 }), xdpRedirect, "redirected"},
	{"the port before ours", with(good4(), func(f *frame) { f.port = DefaultPort - 1 }), xdpPass, ""},
	{"the port after the queues'", with(good4(), func(f *frame) { f.port = DefaultPort + wire.Ports }), xdpPass, ""},
	{"a queue's port, no header", with(good4(), func(f *frame) { f.port = DefaultPort + 1 })[:42], xdpPass, ""},
	{"a queue's port, header short", with(good4(), func(f *frame) { f.port = DefaultPort + 1 })[:89], xdpPass, ""},
	{"a queue's port, connection management", with(good4(), func(f *frame) { f.port, f.kind = DefaultPort+1, kindControl }), xdpPass, ""},
	{"a queue's port, not ours at all", with(good4(), func(f *frame) { f.port, f.magic = DefaultPort+1, 0x45 }), xdpPass, ""},
	{"a queue's port, no VI", with(good4(), func(f *frame) { f.port, f.vi = DefaultPort+1, 0 }), xdpPass, ""},
	{"a queue's port, former generation", with(good4(), func(f *frame) { f.port, f.vi = DefaultPort+1, viIPv4-0x10000 }), xdpPass, ""},
	{"a queue's port, wrong key", with(good4(), func(f *frame) { f.port, f.key = DefaultPort+1, key4^1 }), xdpPass, ""},
	{"a queue's port, wrong peer", with(good4(), func(f *frame) { f.port, f.src = DefaultPort+1, netip.MustParseAddr("192.0.2.9") }), xdpPass, ""},
	{"a queue's port, wrong queue", with(good4(), func(f *frame) { f.port, f.vi = DefaultPort+1, viQueue1 }), xdpDrop, "queue"},
	{"the port with its bytes swapped", with(good4(), func(f *frame) { f.port = 0xb912 }), xdpPass, ""},
	{"another port, IPv6", with(good6(), func(f *frame) { f.port = 53 }), xdpPass, ""},
	{"two tags", with(good4(), func(f *frame) { f.tags = []uint16{0x88a8, 0x8100} }), xdpPass, ""},
	{"another Ethernet type", with(good4(), func(f *frame) { f.proto = 0x88b5 }), xdpPass, ""},
	{"first fragment", with(good4(), func(f *frame) { f.fragment = 0x2000 }), xdpPass, ""},
	{"later fragment", with(good4(), func(f *frame) { f.fragment = 0x0001 }), xdpPass, ""},
	{"last fragment, largest offset", with(good4(), func(f *frame) { f.fragment = 0x1fff }), xdpPass, ""},
	{"IPv4 options", with(good4(), func(f *frame) { f.options = 1 }), xdpPass, ""},
	{"IPv4 with version 6", with(good4(), func(f *frame) { f.version = 6 }), xdpPass, ""},
	{"IPv6 with version 4", with(good6(), func(f *frame) { f.version = 4 }), xdpPass, ""},
	{"IPv6 by the type of IPv4", with(good6(), func(f *frame) { f.proto = 0x0800 }), xdpPass, ""},
	{"IPv6 extension header", with(good6(), func(f *frame) { f.next = unix.IPPROTO_DSTOPTS }), xdpPass, ""},
	{"IPv6 fragment", with(good6(), func(f *frame) { f.next = unix.IPPROTO_FRAGMENT }), xdpPass, ""},
	{"connection management", with(good4(), func(f *frame) { f.kind = kindControl }), xdpPass, "control"},
	{"connection management, IPv6", with(good6(), func(f *frame) { f.kind = kindControl }), xdpPass, "control"},
	{"connection management to a VI", with(good4(), func(f *frame) { f.kind = 0x80 | kindData }), xdpPass, "control"},
	{"connection management, short", frame{kind: kindControl}.cut(42 + 2), xdpPass, "control"},
	{"connection management of another version", with(good4(), func(f *frame) { f.kind, f.magic = kindControl, 0xa4 }), xdpPass, "control"},

	// Short by one at each boundary.
	{"Ethernet and nothing else", good4().cut(14), xdpPass, ""},
	{"tag short", with(good4(), func(f *frame) { f.tags = []uint16{0x8100} })[:17], xdpPass, ""},
	{"tag and nothing else", with(good4(), func(f *frame) { f.tags = []uint16{0x8100} })[:18], xdpPass, ""},
	{"IPv4 short", good4().cut(33), xdpPass, ""},
	{"IPv4 and nothing else", good4().cut(34), xdpPass, ""},
	{"IPv6 short", good6().cut(53), xdpPass, ""},
	{"IPv6 and nothing else", good6().cut(54), xdpPass, ""},
	{"UDP short on IPv4", good4().cut(41), xdpPass, ""},
	{"UDP short on IPv6", good6().cut(61), xdpPass, ""},
	{"no header on IPv4", good4().cut(42), xdpDrop, "short"},
	{"no header on IPv6", good6().cut(62), xdpDrop, "short"},
	{"version without kind", frame{kind: kindControl}.cut(43), xdpDrop, "short"},
	{"version and kind", good4().cut(44), xdpDrop, "short"},
	{"header short on IPv4", good4().cut(89), xdpDrop, "short"},
	{"header short on IPv6", good6().cut(109), xdpDrop, "short"},
	{"header short behind a tag", with(good4(), func(f *frame) { f.tags = []uint16{0x8100} })[:93], xdpDrop, "short"},
	{"header and nothing else, IPv4", good4().cut(90), xdpRedirect, "redirected"},
	{"header and nothing else, IPv6", good6().cut(110), xdpRedirect, "redirected"},

	// No VI gets these.
	{"another version", with(good4(), func(f *frame) { f.magic = 0xa4 }), xdpDrop, "version"},
	{"not ours at all", with(good4(), func(f *frame) { f.magic = 0x45 }), xdpDrop, "version"},
	{"VI 0", with(good4(), func(f *frame) { f.vi = 0 }), xdpDrop, "no_vi"},
	{"VI 0, key 0, from ::", with(frame{src: netip.IPv6Unspecified()}, func(*frame) {}), xdpDrop, "no_vi"},
	{"empty place, generation 1", with(frame{src: netip.IPv6Unspecified()}, func(f *frame) { f.vi = 0x10001 }), xdpDrop, "no_vi"},
	{"former generation", with(good4(), func(f *frame) { f.vi = viIPv4 - 0x10000 }), xdpDrop, "no_vi"},
	{"next generation", with(good4(), func(f *frame) { f.vi = viIPv4 + 0x10000 }), xdpDrop, "no_vi"},
	{"index past the table", with(good4(), func(f *frame) { f.vi = 0x10000 + testVIs }), xdpDrop, "no_vi"},
	{"largest index", with(good4(), func(f *frame) { f.vi = 0x1ffff }), xdpDrop, "no_vi"},
	{"wrong key, first byte", with(good4(), func(f *frame) { f.key = key4 ^ 1<<63 }), xdpDrop, "key"},
	{"wrong key, last byte", with(good4(), func(f *frame) { f.key = key4 ^ 1 }), xdpDrop, "key"},
	{"key of another VI", with(good4(), func(f *frame) { f.key = key6 }), xdpDrop, "key"},
	{"wrong peer", with(good4(), func(f *frame) { f.src = netip.MustParseAddr("192.0.2.9") }), xdpDrop, "source"},
	{"wrong peer, IPv6, low half", with(good6(), func(f *frame) { f.src = netip.MustParseAddr("2001:db8::9") }), xdpDrop, "source"},
	{"wrong peer, IPv6, high half", with(good6(), func(f *frame) { f.src = netip.MustParseAddr("2001:db9::1") }), xdpDrop, "source"},
	{"IPv6 to a VI of IPv4", with(good6(), func(f *frame) { f.vi, f.key = viIPv4, key4 }), xdpDrop, "source"},
	{"IPv4 to a VI of IPv6", with(good4(), func(f *frame) { f.vi, f.key = viIPv6, key6 }), xdpDrop, "source"},
	{"IPv4-mapped in IPv6", with(good6(), func(f *frame) {
		f.src, f.vi, f.key = netip.AddrFrom16(hostA.As16()), viIPv4, key4
	}), xdpRedirect, "redirected"},
	{"wrong queue", with(good4(), func(f *frame) { f.vi = viQueue1 }), xdpDrop, "queue"},
	{"a VI on several queues", with(good4(), func(f *frame) { f.vi = viQueues }), xdpRedirect, "redirected"},
	{"no socket", with(good4(), func(f *frame) { f.vi = viNoSocket }), xdpDrop, "no_socket"},
}

func TestVerdicts(t *testing.T) {
	d, m := loadTestDemux(t), testModel()
	for _, c := range verdicts {
		t.Run(c.name, func(t *testing.T) {
			action, counter := run(t, d, c.frame, 0)
			nstest.ErrorIf(t, action != c.action || counter != c.counter,
				"action %d, counter %q; want %d, %q", action, counter, c.action, c.counter)
			if action, counter := m.verdict(c.frame); action != c.action || counter != c.counter {
				t.Errorf("the model is wrong: action %d, counter %q; want %d, %q", action, counter, c.action, c.counter)
			}
		})
	}
}

// A frame whose headers continue in a fragment is treated like one that ends there.
func TestHeadersInFragment(t *testing.T) {
	d, m := loadTestDemux(t), testModel()
	b := with(good4(), func(f *frame) { f.payload = 6000 })
	_, err := d.Program.Run(&ebpf.RunOptions{Data: b, Context: xdpMD{DataEnd: 90}})
	if errors.Is(err, unix.EINVAL) {
		nstest.Lacks(t, "the kernel's test run does not split frames where it is told to (Linux 6.18 does)")
	}
	for _, linear := range []int{14, 33, 34, 41, 42, 43, 44, 89, 90, 91} {
		action, counter := run(t, d, b, linear)
		if wantAction, want := m.verdict(b[:linear]); action != wantAction || counter != want {
			t.Errorf("linear part of %d: action %d, counter %q; want %d, %q", linear, action, counter, wantAction, want)
		}
	}
}

// For any frame, the program does what the model does. A frame that it gives to a socket is also one for
// package wire, up to lengths and kinds.
func TestProgramAgreesWithModel(t *testing.T) {
	d, m := loadTestDemux(t), testModel()
	rapid.Check(t, func(t *rapid.T) {
		for range 16 {
			b := drawFrame(t)
			action, counter, err := runOn(d, b, 0, 0)
			nstest.Must(t, err)
			if wantAction, want := m.verdict(b); action != wantAction || counter != want {
				t.Fatalf("action %d, counter %q; want %d, %q; frame % x", action, counter, wantAction, want, b)
			}
			if action != xdpRedirect {
				continue
			}
			var p wire.Packet
			err = p.Decode(b)
			if err != nil && !errors.Is(err, wire.ErrLength) && !errors.Is(err, wire.ErrKind) {
				t.Fatalf("redirected, but %v: % x", err, b)
			}
		}
	})
}

// drawFrame returns a frame near the limits of what is accepted: a valid one with some layers changed, then perhaps
// some bytes, then perhaps truncated.
func drawFrame(t *rapid.T) []byte {
	f := rapid.SampledFrom([]frame{good4(), good6(), {vi: viFirst, key: key4}}).Draw(t, "frame")
	often := func(name string) bool { return rapid.IntRange(0, 7).Draw(t, name) == 0 }
	if often("tagged") {
		f.tags = rapid.SliceOfN(rapid.SampledFrom([]uint16{0x8100, 0x88a8}), 0, 2).Draw(t, "tags")
	}
	if often("other VI") {
		f.vi = rapid.SampledFrom([]uint32{0, viIPv4, viIPv6, viFirst, viQueue1, viQueues, viNoSocket, 1, 0x20005, 0xffff}).Draw(t, "vi")
	}
	if often("other key") {
		f.key = rapid.SampledFrom([]uint64{0, key4, key6}).Draw(t, "key")
	}
	if often("other port") {
		f.port = rapid.OneOf(rapid.Uint16(), rapid.Uint16Range(DefaultPort-1, DefaultPort+wire.Ports)).Draw(t, "port")
	}
	if often("control") {
		f.kind = kindControl
	}
	if often("fragment") {
		f.fragment = rapid.Uint16().Draw(t, "fragment")
	}
	f.options = max(0, rapid.IntRange(-12, 2).Draw(t, "options"))
	f.payload = rapid.IntRange(0, 200).Draw(t, "payload")
	b := f.bytes()
	for range max(0, rapid.IntRange(-3, 3).Draw(t, "mutations")) {
		at := rapid.IntRange(0, min(len(b), 110)-1).Draw(t, "at")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	}
	if often("cut") {
		b = b[:rapid.IntRange(14, len(b)).Draw(t, "length")]
	}
	return b
}

// A frame of package wire goes through.
func TestWireFrame(t *testing.T) {
	d := loadTestDemux(t)
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		vlan     uint16
		header   wire.Header
	}{
		{"IPv4", hostA, hostB, 0, wire.Header{Kind: wire.KindData, VI: viIPv4, Key: key4}},
		{"IPv6", host6, peer6, 0, wire.Header{Kind: wire.KindAck, VI: viIPv6, Key: key6}},
		{"VLAN", hostA, hostB, 7, wire.Header{Kind: wire.KindProbe, VI: viIPv4, Key: key4}},
	} {
		tmpl, err := wire.NewTemplate(wire.Link{Src: c.src, Dst: c.dst, VLAN: c.vlan})
		nstest.Must(t, err)
		b := make([]byte, tmpl.Len()+wire.HeaderLen)
		via := tmpl.Put(b, wire.HeaderLen)
		c.header.Put(via)
		wire.PutChecksum(via)
		if action, counter := run(t, d, b, 0); action != xdpRedirect || counter != "redirected" {
			t.Errorf("%s: action %d, counter %q", c.name, action, counter)
		}
	}
}

func TestPortOfConfig(t *testing.T) {
	d := load(t, Config{Port: 0x1234})
	b := with(good4(), func(f *frame) { f.port, f.kind = 0x1234, kindControl })
	if _, counter := run(t, d, b, 0); counter != "control" {
		t.Errorf("counter %q on the port of the configuration", counter)
	}
	b = with(good4(), func(f *frame) { f.kind = kindControl })
	if _, counter := run(t, d, b, 0); counter != "" {
		t.Errorf("counter %q on the default port, which is not configured", counter)
	}
}

func TestUnregisterAndClosedSocket(t *testing.T) {
	d := loadTestDemux(t)
	nstest.Must(t, d.Unregister(slotSocket))
	if _, counter := run(t, d, good4().bytes(), 0); counter != "no_socket" {
		t.Errorf("counter %q after Unregister", counter)
	}
	nstest.WantErr(t, "second Unregister", d.Unregister(slotSocket), ebpf.ErrKeyNotExist)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0)
	nstest.Must(t, err)
	nstest.Must(t, d.Register(slotSocket, fd))
	if action, _ := run(t, d, good4().bytes(), 0); action != xdpRedirect {
		t.Errorf("action %d after Register", action)
	}
	unix.Close(fd)
	nstest.WantErr(t, "Unregister of a closed socket", d.Unregister(slotSocket), nil)
}

func TestRegisterRefuses(t *testing.T) {
	d := loadTestDemux(t)
	fd := rawSocket(t)
	file, err := os.Open(os.DevNull)
	nstest.Must(t, err)
	defer file.Close()
	for _, c := range []struct {
		name     string
		slot, fd int
	}{
		{"slot below", -1, fd},
		{"slot above", testSockets, fd},
		{"no descriptor", 0, -1},
		{"not a socket", 0, int(file.Fd())},
	} {
		if err := d.Register(c.slot, c.fd); err == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
	if got := d.slots(); !cmp.Equal(got, []uint32{slotSocket}) {
		t.Errorf("slots in use: %d", got)
	}
	// The socket of a slot that is in use stays in it.
	if err := d.Register(slotSocket, int(file.Fd())); err == nil {
		t.Error("not a socket, in the place of one: no error")
	}
	if action, _ := run(t, d, good4().bytes(), 0); action != xdpRedirect {
		t.Errorf("action %d after a registration that was refused", action)
	}
}

// A registration that fails after the socket is in its map removes it again.
func TestRegisterFailsHalfWay(t *testing.T) {
	d := load(t, Config{})
	nstest.Must(t, d.EnterVI(viIPv4, VIEntry{Slot: slotSocket, Key: key4, Peer: hostA}))
	if err := d.Queues.Freeze(); err != nil { // user space writes it no more
		t.Fatal(err)
	}
	nstest.WantErr(t, "Register", d.Register(slotSocket, rawSocket(t)), unix.EPERM)
	if _, counter := run(t, d, good4().bytes(), 0); counter != "no_socket" {
		t.Errorf("counter %q after a registration that failed", counter)
	}
	if got := d.slots(); len(got) != 0 {
		t.Errorf("slots in use: %d", got)
	}
}

// Each of the program's causes has a field of its own and a unique name.
func TestCounterNames(t *testing.T) {
	var c Counters
	for i, cause := range causes {
		*cause.field(&c) = uint64(i) + 1
	}
	each := map[string]uint64{}
	next := uint64(1)
	c.Each(func(name string, v uint64) {
		nstest.ErrorIf(t, v != next, "%s: %d, want %d", name, v, next)
		next++
		each[name] = v
	})
	nstest.ErrorIf(t, len(each) != int(demuxCauseCAUSE_COUNT),
		"%d names for %d causes", len(each), demuxCauseCAUSE_COUNT)
	text, err := json.Marshal(c)
	nstest.Must(t, err)
	var fields map[string]uint64
	nstest.Must(t, json.Unmarshal(text, &fields))
	nstest.Same(t, "JSON has other names", fields, each)
}

// Actions, as the kernel numbers them (enum xdp_action).
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

// model is a reference for the demux program. It is written from the rules, not from the program: it parses the
// whole frame first and judges it afterwards.
type model struct {
	table   map[uint32]VIEntry // by VI number
	size    int                // entries of the VI table
	sockets map[uint32]bool    // slots in use
	queue   uint32             // where frames come in
}

// verdict returns the action and the name of the counter that changes; "" is none.
func (m *model) verdict(b []byte) (action uint32, counter string) {
	src, udp, ok := dissect(b)
	if !ok {
		return xdpPass, ""
	}
	port := int(binary.BigEndian.Uint16(udp[2:]))
	if port < DefaultPort || port >= DefaultPort+wire.Ports {
		return xdpPass, ""
	}
	if port > DefaultPort { // only what is a VI's is taken
		defer func() {
			if counter != "redirected" && counter != "queue" && counter != "no_socket" {
				action, counter = xdpPass, ""
			}
		}()
	}
	via := udp[8:]
	switch {
	case len(via) >= 2 && via[1]&0x80 != 0:
		return xdpPass, "control"
	case len(via) < 48:
		return xdpDrop, "short"
	case via[0] != 0xa3:
		return xdpDrop, "version"
	}
	num := binary.BigEndian.Uint32(via[4:])
	e, known := m.table[num]
	switch {
	case !known || int(num&0xffff) >= m.size:
		return xdpDrop, "no_vi"
	case e.Key != binary.BigEndian.Uint64(via[8:]):
		return xdpDrop, "key"
	case e.Peer.Unmap() != src.Unmap():
		return xdpDrop, "source"
	case e.Queues == 0 && e.Queue != m.queue, e.Queues != 0 && m.queue >= e.Queues:
		return xdpDrop, "queue"
	}
	slot := e.Slot
	if e.Queues != 0 {
		slot += m.queue
	}
	if !m.sockets[slot] {
		return xdpDrop, "no_socket"
	}
	return xdpRedirect, "redirected"
}

// dissect returns sender and UDP datagram of a plain frame: at most one tag, no options, no fragment, no extension
// header.
func dissect(b []byte) (src netip.Addr, udp []byte, ok bool) {
	at := 14
	if len(b) < at {
		return src, nil, false
	}
	proto := binary.BigEndian.Uint16(b[12:])
	if proto == 0x8100 || proto == 0x88a8 {
		at += 4
		if len(b) < at {
			return src, nil, false
		}
		proto = binary.BigEndian.Uint16(b[16:])
	}
	b = b[at:]
	switch proto {
	case 0x0800:
		if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 != 5 || b[9] != 17 {
			return src, nil, false
		}
		more, offset := b[6]&0x20 != 0, binary.BigEndian.Uint16(b[6:])&0x1fff
		if more || offset != 0 {
			return src, nil, false
		}
		src, udp = netip.AddrFrom4([4]byte(b[12:16])), b[20:]
	case 0x86dd:
		if len(b) < 40 || b[0]>>4 != 6 || b[6] != 17 {
			return src, nil, false
		}
		src, udp = netip.AddrFrom16([16]byte(b[8:24])), b[40:]
	default:
		return src, nil, false
	}
	return src, udp, len(udp) >= 8
}

// One run of a program on one frame, measured by the kernel. The run on a frame that the program does not read
// beyond Ethernet shows the cost of the measurement.
func BenchmarkPrograms(b *testing.B) {
	d := loadTestDemux(b)
	r := loadTestRedirect(b, RedirectConfig{Frags: true})
	nstest.Must(b, r.Register(0, rawSocket(b)))
	for _, c := range []struct {
		name    string
		program *ebpf.Program
		frame   []byte
		action  uint32
	}{
		{"demux/hit-IPv4", d.Program, good4().bytes(), xdpRedirect},
		{"demux/hit-IPv6", d.Program, good6().bytes(), xdpRedirect},
		{"demux/wrong-key", d.Program, with(good4(), func(f *frame) { f.key++ }), xdpDrop},
		{"demux/TCP", d.Program, with(good4(), func(f *frame) { f.next = 6 }), xdpPass},
		{"demux/ARP", d.Program, arp(), xdpPass},
		{"redirect/hit-IPv4", r.Program, good4().bytes(), xdpRedirect},
		{"foreign", foreign(b), good4().bytes(), xdpPass},
	} {
		b.Run(c.name, func(b *testing.B) {
			action, perRun, err := c.program.Benchmark(c.frame, b.N, b.ResetTimer)
			nstest.FatalIf(b, err != nil || action != c.action, "action %d, %v", action, err)
			b.ReportMetric(float64(perRun.Nanoseconds()), "ns/run")
		})
	}
}
