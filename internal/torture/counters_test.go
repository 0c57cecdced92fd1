package torture

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/testbed"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// promised are the counters that docs/counters.md says TestCountersMove moves,
// by section and name.
func promised(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/counters.md")
	must(t, err)
	section := ""
	for line := range strings.Lines(string(text)) {
		if head, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(head)
		}
		if strings.HasPrefix(line, "| `") && strings.Contains(line, ".TestCountersMove`") {
			name, _, _ := strings.Cut(line[len("| `"):], "`")
			names = append(names, section+" "+name)
		}
	}
	if len(names) < 20 {
		t.Fatalf("docs/counters.md names only %v", names)
	}
	return names
}

// moved are the counters that are not 0 in a report, named as promised does.
func moved(r *Report) (names []string) {
	engine := reflect.ValueOf(r.Engine)
	for _, f := range reflect.VisibleFields(engine.Type()) {
		if engine.FieldByIndex(f.Index).Uint() > 0 {
			names = append(names, "Engine "+f.Name)
		}
	}
	r.Program.Each(func(name string, v uint64) {
		if v > 0 {
			names = append(names, "Demux program "+name)
		}
	})
	r.Queue.Each(func(c xdpnic.Counter) {
		if c.Value > 0 {
			names = append(names, "Queue "+c.Name)
		}
	})
	return names
}

// A rough time moves all counters that can be moved from outside.
func TestCountersMove(t *testing.T) {
	t.Parallel()
	b := newBed(t, BedConfig{MTU: 9000})
	must(t, b.Open(NICConfig{Silence: silence, RxChunks: 256}))
	for _, level := range levels {
		cfg := mortal("rough-"+level.String(), level)
		cfg.MaxBytes = 40_000
		must(t, b.Start(cfg))
	}
	talking(t, b, [2]*Report{{}, {}})
	missing := promised(t)
	strike := func(r *Report) {
		names := moved(r)
		missing = slices.DeleteFunc(missing, func(name string) bool { return slices.Contains(names, name) })
	}
	rough := testbed.Faults{Seed: 11, Loss: 0.02, Duplicate: 0.1, Reorder: 0.05, Corrupt: 0.2}
	waits := func() bool { // for counters that are not told by the queue, whose turn comes last
		return slices.ContainsFunc(missing, func(name string) bool { return !strings.HasPrefix(name, "Queue ") })
	}
	for end := time.Now().Add(patience); waits() && time.Now().Before(end); {
		rough.Seed++
		b.Site.Middle.SetBoth(rough)
		time.Sleep(700 * time.Millisecond)
		must(t, b.Link(0, netlink.LinkSetDown))
		time.Sleep(silence * 5 / 4)
		must(t, b.Link(0, netlink.LinkSetUp))
		calm(b)
		var none Report
		for side, r := range talking(t, b, [2]*Report{&none, &none}) {
			promises(t, side, r)
			strike(r)
		}
	}
	r, err := b.Stop()
	must(t, err)
	for side := range r {
		promises(t, side, r[side])
	}
	r, err = b.CloseNICs()
	must(t, err)
	for side := range r {
		promises(t, side, r[side])
		strike(r[side])
	}
	if len(missing) > 0 {
		t.Errorf("did not move: %q", missing)
	}
}

// A message that is too long and a write to what is not open for it are
// refused, and counted.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	b := newBed(t, BedConfig{})
	var nic *vipl.Nic
	must(t, b.Site.Do(0, func() (err error) {
		nic, err = vipl.OpenNic(Interface, vipl.WithArena(8<<20))
		return err
	}))
	defer nic.Close()
	nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	tag, err := nic.CreatePtag()
	must(t, err)
	mem, err := nic.AllocMem(4096, vipl.MemAttributes{Ptag: tag}) // not open for RDMA
	must(t, err)
	for i, c := range []struct {
		name    string
		send    func(d *vipl.Descriptor)
		counter func(vipl.Counters) uint64
	}{
		{"too long", func(d *vipl.Descriptor) { d.SetSegments(mem.Segment(1024, 100)) },
			func(c vipl.Counters) uint64 { return c.TooLong }},
		{"not open", func(d *vipl.Descriptor) { d.SetRDMAWrite(mem.Remote(2048), mem.Segment(1024, 100)) },
			func(c vipl.Counters) uint64 { return c.RDMARefused }},
	} {
		var vis [2]*vipl.VI
		for k := range vis {
			vis[k], err = nic.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery, EnableRdmaWrite: true}, nil, nil)
			must(t, err)
		}
		d, err := mem.Descriptor(0, 2)
		must(t, err)
		recv, err := mem.Descriptor(64, 2)
		must(t, err)
		recv.SetSegments(mem.Segment(3072, 16))
		must(t, vis[1].PostRecv(recv, mem.Handle()))
		connectLocal(t, nic, vis, fmt.Sprint("refusal", i))
		before := bytes.Clone(mem.Bytes()[2048:3072])
		c.send(d)
		must(t, vis[0].PostSend(d, mem.Handle()))
		for end := time.Now().Add(patience); c.counter(nic.Counters()) == 0; time.Sleep(time.Millisecond) {
			nic.Poll()
			if time.Now().After(end) {
				t.Fatalf("%s is not counted: %+v", c.name, nic.Counters())
			}
		}
		if !bytes.Equal(before, mem.Bytes()[2048:3072]) {
			t.Errorf("%s: memory was written", c.name)
		}
		for _, v := range vis {
			must(t, v.Disconnect())
			for _, done := range []func() (*vipl.Descriptor, error){v.SendDone, v.RecvDone} {
				for d, _ := done(); d != nil; d, _ = done() {
				}
			}
			must(t, v.Destroy())
		}
	}
}

// connectLocal connects two VIs of one NIC.
func connectLocal(t *testing.T, nic *vipl.Nic, vis [2]*vipl.VI, name string) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		c, err := nic.ConnectWait(vipl.NetAddress{Discriminator: []byte(name)}, patience)
		if err == nil {
			err = c.Accept(vis[1])
		}
		accepted <- err
	}()
	var err error
	for range 2000 {
		if _, err = vis[0].ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: nic.Query().Address, Discriminator: []byte(name)}, time.Second); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond) // the other goroutine may not wait yet
	}
	must(t, err)
	must(t, <-accepted)
}
