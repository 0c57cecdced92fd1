package kagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/hugepages"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// A number is valid, handed out once at a time, and a freed index comes back
// after all others, with another generation.
func TestNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2, 9).Draw(t, "limit")
		s := NewNumbers(limit)
		live := map[uint32]bool{}    // by number
		taken := map[uint16]bool{}   // by index
		last := map[uint16]uint16{}  // generation of the last use
		freed := map[uint16]uint64{} // when it was freed, 0: never used
		var clock uint64
		t.Repeat(map[string]func(*rapid.T){
			"new": func(t *rapid.T) {
				num, err := s.New()
				if len(live) == limit-1 {
					if !errors.Is(err, ErrNoVI) {
						t.Fatalf("with all in use: %#x, %v", num, err)
					}
					return
				}
				nstest.Must(t, err)
				i := uint16(num)
				if i == 0 || int(i) >= limit || taken[i] || live[num] {
					t.Fatalf("number %#x", num)
				}
				if gen, used := last[i]; used && uint16(num>>16) != gen+1 {
					t.Fatalf("generation %#x after %#x", num>>16, gen)
				}
				for j := uint16(1); int(j) < limit; j++ {
					if !taken[j] && freed[j] < freed[i] {
						t.Fatalf("index %d is used again before %d, which is free for longer", i, j)
					}
				}
				live[num], taken[i], last[i] = true, true, uint16(num>>16)
			},
			"free": func(t *rapid.T) {
				for num := range live {
					if !s.Live(num) || !s.Free(num) {
						t.Fatalf("%#x is not live", num)
					}
					if s.Live(num) || s.Free(num) {
						t.Fatalf("%#x is live after Free", num)
					}
					clock++
					delete(live, num)
					taken[uint16(num)] = false
					freed[uint16(num)] = clock
					return
				}
			},
			"free a stranger": func(t *rapid.T) {
				num := rapid.Uint32().Draw(t, "num")
				if !live[num] && s.Free(num) {
					t.Fatalf("%#x was never handed out", num)
				}
			},
		})
	})
}

// Keys are not 0 and not the same.
func TestKeys(t *testing.T) {
	seen := map[uint64]bool{0: true}
	for range 1000 {
		k := NewKey()
		nstest.FatalIf(t, seen[k], "key %#x", k)
		seen[k] = true
	}
}

// Two sets begin with different generations.
func TestNumbersStartAtRandom(t *testing.T) {
	a, b := NewNumbers(64), NewNumbers(64)
	same := 0
	for range 63 {
		x, errx := a.New()
		y, erry := b.New()
		if errx != nil || erry != nil {
			t.Fatal(errx, erry)
		}
		if x == y {
			same++
		}
	}
	nstest.ErrorIf(t, same > 5, "%d of 63 numbers are the same", same)
}

// Take hands out what a former agent has handed out, once, and New does not give it
// again.
func TestTake(t *testing.T) {
	s := NewNumbers(6)
	const taken = 3 | 77<<16
	for _, wrong := range []uint32{0, 6, 77 << 16} {
		nstest.ErrorIf(t, s.Take(wrong), "%#x was taken", wrong)
	}
	nstest.ErrorIf(t, !s.Take(taken) || s.Take(taken) || s.Take(3|78<<16) || !s.Live(taken) || s.Used() != 1, "index 3 is not taken once")
	seen := map[uint32]bool{3: true}
	for range 4 {
		n, err := s.New()
		nstest.FatalIf(t, err != nil || seen[n&0xffff], "%#x, %v: given before", n, err)
		seen[n&0xffff] = true
	}
	if n, err := s.New(); err == nil {
		t.Errorf("%#x is one too many", n)
	}
	nstest.ErrorIf(t, !s.Free(taken), "it cannot be given back")
	if n, err := s.New(); err != nil || n != 3|78<<16 {
		t.Errorf("%#x, %v: want the next generation of index 3", n, err)
	}
}

// The next agent takes over many numbers about as fast as this one hands them out, in whatever order.
func TestTakeMany(t *testing.T) {
	s := NewNumbers(1 << 16)
	var all []uint32
	start := time.Now()
	for range 1 << 15 {
		n, err := s.New()
		nstest.Must(t, err)
		all = append(all, n)
	}
	given := time.Since(start)
	slices.Reverse(all)
	taken := time.Hour
	for range 3 { // other processes may run meanwhile
		next := NewNumbers(1 << 16)
		start = time.Now()
		for _, n := range all {
			nstest.FatalIf(t, !next.Take(n), "%#x is not taken", n)
		}
		taken = min(taken, time.Since(start))
		nstest.Equal(t, "numbers in use", next.Used(), len(all))
	}
	nstest.ErrorIf(t, taken > 50*given, "handed out in %v, taken over in %v", given, taken)
}

// An Info survives JSON with all its fields.
func TestInfoMessage(t *testing.T) {
	i := Info{
		Interface: "eth1", Index: 3, Queue: 2, Mode: xdpnic.ModeGeneric, Notes: []string{"note"},
		Attempts: []xdpnic.Attempt{{Mode: xdpnic.ModeNative, Err: errors.New("no")}, {Mode: xdpnic.ModeGeneric}},
		NIC:      xdpnic.Info{MaxSegs: 18, FeaturesErr: errors.New("old kernel"), Attempts: []xdpnic.Attempt{{Mode: xdpnic.ModeGeneric}}},
		Arena: hugepages.Info{Size: 4096, Refused: []hugepages.Refusal{
			{Step: hugepages.Hugetlb, Err: errors.New("ENOMEM"), Cause: "cause", Remedy: "remedy"}, {Step: hugepages.THP, Cause: "c"},
		}},
	}
	b, err := json.Marshal(i.Message())
	nstest.Must(t, err)
	var m InfoMessage
	nstest.Must(t, json.Unmarshal(b, &m))
	got := m.Restore()
	if got.Attempts[0].Err.Error() != "no" || got.Attempts[1].Err != nil || got.NIC.FeaturesErr.Error() != "old kernel" ||
		len(got.NIC.Attempts) != 1 || got.Notes[0] != "note" || got.Mode != i.Mode || got.NIC.MaxSegs != 18 {
		t.Errorf("%+v", got)
	}
	nstest.ErrorIf(t, got.Arena.String() != i.Arena.String(), "%v, want %v", got.Arena, i.Arena)
	nstest.ErrorIf(t, i.Attempts[0].Err.Error() != "no" || len(i.Arena.Refused) != 2, "encoding has changed the original")
}

// What the two sides of a handshake bind is the same on both, and other as soon as
// anything of it is: numbers, discriminators, addresses, direction, kind.
func TestBound(t *testing.T) {
	from := Address{netip.MustParseAddr("10.0.0.1"), []byte("client")}
	to := Address{netip.MustParseAddr("10.0.0.2"), []byte("echo")}
	base := Offer{VI: 1, Key: 2, Seq: 3, Window: 4, MaxPayload: 5, Level: 2, MaxTransfer: 6, QoS: 7}
	bound := func(o Offer, request, peers bool, from, to Address) []byte {
		t.Helper()
		b, err := o.Bound(request, peers, from, to)
		nstest.Must(t, err)
		return b
	}
	want := bound(base, true, false, from, to)
	// The other side has it from a message, and addresses in another form.
	msg := base.Message(wire.CMRequest)
	msg.ID, msg.From, msg.To = 77, from.Disc, to.Disc
	b, err := msg.Append(nil)
	nstest.Must(t, err)
	back, err := wire.ParseCM(b)
	nstest.Must(t, err)
	mapped := Address{netip.MustParseAddr("::ffff:10.0.0.2"), to.Disc}
	if got := bound(OfferOf(&back), true, false, from, mapped); !bytes.Equal(got, want) {
		t.Errorf("on the other side:\n%x, want\n%x", got, want)
	}
	other := func(change func(*Offer)) Offer { o := base; change(&o); return o }
	for name, got := range map[string][]byte{
		"VI":       bound(other(func(o *Offer) { o.VI++ }), true, false, from, to),
		"key":      bound(other(func(o *Offer) { o.Key++ }), true, false, from, to),
		"sequence": bound(other(func(o *Offer) { o.Seq++ }), true, false, from, to),
		"window":   bound(other(func(o *Offer) { o.Window++ }), true, false, from, to),
		"payload":  bound(other(func(o *Offer) { o.MaxPayload++ }), true, false, from, to),
		"level":    bound(other(func(o *Offer) { o.Level = 4 }), true, false, from, to),
		"transfer": bound(other(func(o *Offer) { o.MaxTransfer++ }), true, false, from, to),
		"writes":   bound(other(func(o *Offer) { o.RDMAWrite = true }), true, false, from, to),
		"reads":    bound(other(func(o *Offer) { o.RDMARead = true }), true, false, from, to),
		"checksum": bound(other(func(o *Offer) { o.BareData = true }), true, false, from, to),
		"answer":   bound(base, false, false, from, to),
		"peers":    bound(base, true, true, from, to),
		"back":     bound(base, true, false, to, from),
		"host":     bound(base, true, false, Address{to.Host, from.Disc}, to),
		"from":     bound(base, true, false, Address{from.Host, []byte("clien")}, to),
		"to":       bound(base, true, false, from, Address{to.Host, []byte("techo")}),
	} {
		nstest.ErrorIf(t, bytes.Equal(got, want), "%s is not bound", name)
	}
	if got := bound(other(func(o *Offer) { o.Handshake = Opaque(make([]byte, wire.CMShareLen)) }), true, false, from, to); !bytes.Equal(got, want) {
		t.Error("the handshake itself is bound")
	}
}
