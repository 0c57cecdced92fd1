package vipltest

import "viaxdp/vipl"

// silentRules are about a peer of which nothing is heard any more.
var silentRules = []Rule{
	{
		ID: "reliability/silent-peer", Text: "When the peer goes silent the VI goes to Error with CONN_LOST, at every level, and receives are flushed.",
		Choice: "peers probe each other; the time is set when the NIC is opened, 1.6 s otherwise",
		run:    silentPeer,
	},
	{
		ID: "reliability/silent-peer-reception", Text: "Reliable Reception: the oldest send that a silent peer did not answer has TRANSPORT, those behind it are flushed.",
		run: silentReception,
	},
	{
		ID: "reliability/silent-peer-read", Text: "An RDMA read that a silent peer did not answer has TRANSPORT, at both reliable levels.",
		run: silentRead,
	},
}

// joined makes a connected pair of VIs on NICs of the rule's own.
func (t *T) joined(a, b *vipl.Nic, level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	attrs := vipl.ViAttributes{Level: level, EnableRdmaWrite: true, EnableRdmaRead: level != vipl.UnreliableDelivery}
	va, vb = t.vi(a, attrs), t.vi(b, attrs)
	t.join(va, vb)
	return va, vb
}

func silentPeer(t *T) {
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
}

func silentReception(t *T) {
	a, b, silence := t.openSilent()
	va, _ := t.joined(a, b, vipl.ReliableReception)
	x := t.block(a, 4, 5000)
	silence()
	for i := range x.desc {
		x.send(va, i, 5000)
	}
	t.failsAt(va, len(x.desc), 0, vipl.StatusTransportError)
	t.state(va, vipl.Error)
}

func silentRead(t *T) {
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
}

// silentTransport is the asynchronous error that tells of it.
func silentTransport(t *T) {
	a, b, silence := t.openSilent()
	x, y := t.block(a, 2, 64), t.block(b, 1, 64)
	reader, _ := t.joined(a, b, vipl.ReliableDelivery)
	writer, _ := t.joined(a, b, vipl.ReliableReception)
	silence()
	read := x.read(reader, 0, 64, y.remote(0))
	write := x.write(writer, 1, 64, y.remote(0))
	for _, c := range []struct {
		v  *vipl.VI
		d  *vipl.Descriptor
		op vipl.Status
	}{{reader, read, vipl.StatusOpRDMARead}, {writer, write, vipl.StatusOpRDMAWrite}} {
		e := t.asyncErrors(c.v, vipl.ErrorRDMATransport, vipl.ErrorConnLost)[0]
		if e.Nic != a || e.Resource != vipl.ResourceDescriptor || e.Descriptor != c.d || e.Op != c.op {
			t.Errorf("%+v", e)
		}
		t.sent(c.v, c.op|vipl.StatusTransportError)
	}
}
