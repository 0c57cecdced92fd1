package bpf

import (
	"errors"
	"math"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"viaxdp/internal/lab/nstest"
)

func TestEnterAndRemove(t *testing.T) {
	d := loadTestDemux(t)
	const vi = 0x0002_0020
	entry := VIEntry{Slot: slotSocket, Key: 77, Peer: hostA}
	b := frame{vi: vi, key: 77}.bytes()
	expect := func(when, want string) {
		t.Helper()
		if _, counter := run(t, d, b, 0); counter != want {
			t.Errorf("%s: counter %q, want %q", when, counter, want)
		}
	}
	expect("before", "no_vi")
	nstest.Must(t, d.EnterVI(vi, entry))
	expect("entered", "redirected")

	entry.Peer = netip.AddrFrom16(hostA.As16()) // the same in its other form
	nstest.Must(t, d.EnterVI(vi, entry))
	expect("entered again", "redirected")

	nstest.Must(t, d.EnterVI(vi+0x10000, VIEntry{Slot: slotSocket, Key: 78, Peer: hostA}))
	expect("next generation in its place", "no_vi")
	nstest.WantErr(t, "removing a former generation", d.RemoveVI(vi), ErrNoVI)
	b = frame{vi: vi + 0x10000, key: 78}.bytes()
	expect("next generation", "redirected")
	nstest.Must(t, d.RemoveVI(vi+0x10000))
	expect("removed", "no_vi")
	nstest.WantErr(t, "removing twice", d.RemoveVI(vi+0x10000), ErrNoVI)
}

func TestEnterRefuses(t *testing.T) {
	d := loadTestDemux(t)
	good := VIEntry{Slot: slotSocket, Key: 1, Peer: hostA}
	for _, c := range []struct {
		name   string
		num    uint32
		change func(*VIEntry)
	}{
		{"VI 0", 0, func(*VIEntry) {}},
		{"index past the table", 0x10000 + testVIs, func(*VIEntry) {}},
		{"slot past the sockets", 0x10001, func(e *VIEntry) { e.Slot = testSockets }},
		{"slots past the sockets", 0x10001, func(e *VIEntry) { e.Queues = testSockets - slotSocket + 1 }},
		{"most queues", 0x10001, func(e *VIEntry) { e.Queues = math.MaxUint32 }},
		{"largest slot", 0x10001, func(e *VIEntry) { e.Slot = math.MaxUint32 }},
		{"no peer", 0x10001, func(e *VIEntry) { e.Peer = netip.Addr{} }},
	} {
		e := good
		c.change(&e)
		if err := d.EnterVI(c.num, e); err == nil {
			t.Errorf("%s: no error", c.name)
		}
		if err := d.RemoveVI(c.num); !errors.Is(err, ErrNoVI) {
			t.Errorf("%s: RemoveVI: %v", c.name, err)
		}
	}
}

// After Close the table has no VI, for a process that still has the map or the program.
func TestCloseEmptiesTheTable(t *testing.T) {
	d := loadTestDemux(t)
	kept, err := d.vis.m.Clone()
	nstest.Must(t, err)
	defer kept.Close()
	nstest.Must(t, d.Close())
	for i := range uint32(testVIs) {
		var e demuxViEntry
		nstest.Must(t, kept.Lookup(i, &e))
		nstest.ErrorIf(t, uint32(e.Id) != 0, "entry %d is of VI %#x", i, uint32(e.Id))
	}
}

// A map lookup returns each entry as it is in the mapping.
func TestTableLayout(t *testing.T) {
	d := loadTestDemux(t)
	for i := range uint32(testVIs) {
		var e demuxViEntry
		nstest.Must(t, d.vis.m.Lookup(i, &e))
		if e != d.vis.entries[i] {
			t.Errorf("entry %d: %+v, mapped %+v", i, e, d.vis.entries[i])
		}
		if num := uint32(e.Id); num != 0 && testTable[num].Key == 0 {
			t.Errorf("entry %d: VI %#x", i, num)
		}
	}
}

// Two VIs take turns at one index, each with its own key, peer and slot, while frames of the first run through the
// program. A frame goes to its VI's slot, which has the socket, or nowhere; never to the other's, which has none.
func TestEntryChangesUnderTraffic(t *testing.T) {
	d := loadTestDemux(t)
	const place = 0x30
	const first, second = 0x1_0000 + place, 0x2_0000 + place
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			num, e := uint32(first), VIEntry{Slot: slotSocket, Key: key4, Peer: hostA}
			if i%2 == 1 {
				num, e = second, VIEntry{Slot: slotEmpty, Key: key6, Peer: hostB, Queue: 1}
			}
			if err := d.EnterVI(num, e); err != nil {
				t.Error(err)
				return
			}
		}
	})
	b := frame{vi: first, key: key4}.bytes()
	before := counters(t, d)
	after := before
	// Until both VIs were seen in place: how soon is the scheduler's choice.
	for end := time.Now().Add(waitLimit); time.Now().Before(end) &&
		(after.Redirected == before.Redirected || after.NoVI == before.NoVI); {
		if _, err := d.Program.Run(&ebpf.RunOptions{Data: b, Repeat: 50_000}); err != nil {
			t.Error(err)
			break
		}
		after = counters(t, d)
	}
	close(stop)
	wg.Wait()
	nstest.ErrorIf(t, after.NoSocket != before.NoSocket,
		"%d frames went to the slot of another VI", after.NoSocket-before.NoSocket)
	nstest.ErrorIf(t, after.Redirected == before.Redirected || after.NoVI == before.NoVI,
		"the turns did not show: %s", difference(before, after))
}

func TestConfigLimits(t *testing.T) {
	for _, cfg := range []Config{
		{MaxVIs: -1}, {MaxVIs: 1<<16 + 1}, {MaxSockets: -1}, {MaxSockets: maxSlots + 1},
	} {
		if d, err := LoadDemux(cfg); err == nil {
			d.Close()
			t.Errorf("%+v: no error", cfg)
		}
	}
	d := load(t, Config{MaxVIs: 1 << 16, MaxSockets: 1})
	nstest.WantErr(t, "largest VI number", d.EnterVI(math.MaxUint32, VIEntry{Key: 1, Peer: hostA}), nil)
	if _, counter := run(t, d, frame{vi: math.MaxUint32, key: 1}.bytes(), 0); counter != "no_socket" {
		t.Errorf("largest VI number: counter %q", counter)
	}
}

// An empty entry is all zeros. A frame may be, too, and must not match it.
func TestEmptyEntryIsNoVI(t *testing.T) {
	d := load(t, Config{})
	nstest.Must(t, d.Register(0, rawSocket(t)))
	if action, counter := run(t, d, frame{src: netip.IPv6Unspecified()}.bytes(), 0); action != xdpDrop || counter != "no_vi" {
		t.Errorf("action %d, counter %q", action, counter)
	}
}

func TestClosed(t *testing.T) {
	d := load(t, Config{})
	for range 2 {
		nstest.Must(t, d.Close())
	}
	_, countersErr := d.Counters()
	for name, err := range map[string]error{
		"EnterVI":    d.EnterVI(1, VIEntry{Peer: hostA}),
		"RemoveVI":   d.RemoveVI(1),
		"Register":   d.Register(0, 0),
		"Unregister": d.Unregister(0),
		"Attach":     d.Attach(1, Generic),
		"Counters":   countersErr,
	} {
		nstest.ErrorIf(t, !errors.Is(err, os.ErrClosed), "%s: %v", name, err)
	}
	nstest.WantErr(t, "Detach", d.Detach(), nil)
}
