package kagent

import (
	"bytes"
	"net/netip"
	"testing"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

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
		if bytes.Equal(got, want) {
			t.Errorf("%s is not bound", name)
		}
	}
	if got := bound(other(func(o *Offer) { o.Handshake = Opaque(make([]byte, wire.CMShareLen)) }), true, false, from, to); !bytes.Equal(got, want) {
		t.Error("the handshake itself is bound")
	}
}
