package vipltest

import "viaxdp/vipl"

// silentRules are about a peer that has become silent.
var silentRules = []Rule{
	choice("reliability/silent-peer", "When the peer goes silent the VI goes to Error with CONN_LOST, at every level, and receives are flushed.", "peers probe each other; the time is set when the NIC is opened, 1.6 s otherwise", func(t *T) {
		a, b, silence := t.openSilent()
		x := t.block(a, 2*len(allLevels), 64)
		var vis []*vipl.VI
		for i, level := range allLevels {
			va, _ := t.joined(a, b, level)
			vis = append(vis, va)
			x.recv(va, 2*i, 64)
			x.recv(va, 2*i+1, 64)
		}
		silence()
		for _, v := range vis {
			t.state(v, vipl.Error)
			t.received(v, vipl.StatusFlushed)
			t.received(v, vipl.StatusFlushed)
			t.asyncErrors(v, vipl.ErrorConnLost)
		}
	}),
	rule("reliability/silent-peer-reception", "Reliable Reception: the oldest send that a silent peer did not answer has TRANSPORT, those behind it are flushed.", func(t *T) {
		a, b, silence := t.openSilent()
		va, _ := t.joined(a, b, vipl.ReliableReception)
		x := t.block(a, 4, 5000)
		silence()
		x.sends(va, len(x.desc), 5000)
		t.failsAt(va, len(x.desc), 0, vipl.StatusTransportError)
		t.state(va, vipl.Error)
	}),
	rule("reliability/silent-peer-read", "An RDMA read that a silent peer did not answer has TRANSPORT, at both reliable levels.", func(t *T) {
		a, b, silence := t.openSilent()
		x, y := t.block(a, 4, 64), t.block(b, 1, 64)
		var vis []*vipl.VI
		for _, level := range reliableLevels {
			va, _ := t.joined(a, b, level)
			vis = append(vis, va)
		}
		silence()
		for i, v := range vis {
			x.read(v, 2*i, 64, y.remote(0))
			x.read(v, 2*i+1, 64, y.remote(0))
		}
		for _, v := range vis {
			t.sent(v, vipl.StatusOpRDMARead|vipl.StatusTransportError)
			t.sent(v, vipl.StatusOpRDMARead|vipl.StatusFlushed)
			t.state(v, vipl.Error)
		}
	}),
}

// joined makes a connected pair of VIs on NICs of the rule's own.
func (t *T) joined(a, b *vipl.NIC, level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	attrs := vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery}
	va, vb = t.vi(a, attrs), t.vi(b, attrs)
	t.join(va, vb)
	return va, vb
}
