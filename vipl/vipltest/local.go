package vipltest

import (
	"bytes"
	"sync"

	"viaxdp/vipl"
)

// Two VIs of one NIC connected with each other: all rules of connections hold.
var localRules = []Rule{
	rule("local/two-vis-of-one-nic-connect", "Two VIs of one NIC handle connect with each other, by the NIC's own address.", local(requestMeetsWait)),
	rule("local/messages-of-all-sizes", "Messages of 0 bytes to the maximum go both ways between two VIs of one NIC.", local(eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		sizes(t, level, va, vb)
		sizes(t, level, vb, va)
	}))),
	rule("local/messages-in-order", "Messages between two VIs of one NIC arrive in order, also when both send at once.", local(eachLevel(bothWays(200)))),
	rule("local/immediate-data", "Immediate data goes between two VIs of one NIC, with and without a message.", local(eachLevel(immediateData))),
	rule("local/rdma-write", "RDMA writes, with and without immediate data, go between two VIs of one NIC.", local(eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		writeSizes(t, level)
		writeImmediate(t, level)
	}))),
	rule("local/rdma-read", "RDMA reads go between two VIs of one NIC.", local(eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		readSizes(t, level)
		readBothWays(t, level)
	}))),
	rule("local/protection-holds", "Of two VIs of one NIC, too, each decides about RDMA to its memory: by its enables and its tag.", func(t *T) {
		mine, other := t.tag(t.A), t.tag(t.A)
		x := t.block(t.A, 1, 64)
		open := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: mine, EnableRDMAWrite: true})
		wrongTag := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: other, EnableRDMAWrite: true})
		closed := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: mine, EnableRDMARead: true})
		for _, c := range []struct {
			what    string
			region  *vipl.Region
			enable  bool
			refused bool
		}{
			{"all open", open, true, false},
			{"tag of another VI", wrongTag, true, true},
			{"region not open", closed, true, true},
			{"VI not open", open, false, true},
		} {
			t.sub(c.what, func(t *T) {
				v := t.vi(t.A, at(vipl.ReliableReception))
				w := t.vi(t.A, vipl.VIAttributes{Level: vipl.ReliableReception, Ptag: mine, EnableRDMAWrite: c.enable})
				t.join(v, w)
				clear(c.region.Bytes())
				fill(x.buf(0), 1)
				x.write(v, 0, 64, c.region.Remote(0))
				if !c.refused {
					t.sent(v, vipl.StatusOpRDMAWrite)
					t.coalesces("written", c.region.Bytes(), 1)
					return
				}
				t.sent(v, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError)
				t.untouched("the target", c.region.Bytes())
				t.states(vipl.Error, v, w)
				t.asyncErrors(w, vipl.ErrorRDMAWriteProtection, vipl.ErrorConnLost)
			})
		}
	}),
	rule("local/empty-receive-queue", "A message that meets an empty receive queue is dropped on an unreliable VI and breaks the connection on a reliable one.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		x := t.block(t.A, 2, 64)
		x.send(v, 0, 64)
		t.asyncError(w, vipl.ErrorRecvQueueEmpty)
		switch level {
		case vipl.UnreliableDelivery:
			t.sent(v, 0)
			t.stays(v, vipl.Connected)
			x.recv(w, 1, 64)
			x.send(v, 0, 64)
			t.received(w, 0)
			return
		case vipl.ReliableReception:
			t.sent(v, vipl.StatusRemoteDescError)
		}
		t.states(vipl.Error, v, w)
		t.asyncErrors(v, vipl.ErrorConnLost)
		t.asyncErrors(w, vipl.ErrorRecvQueueEmpty, vipl.ErrorConnLost)
	})),
	rule("local/disconnect", "When one of two VIs of one NIC disconnects, the other goes to Error, flushed, with CONN_LOST; both connect again.", local(func(t *T) {
		everyLevel(peerDisconnect)(t)
		eachLevel(reconnect)(t)
	})),
	rule("local/no-match-and-reject", "Requests to the NIC's own address get NO_MATCH and REJECT as those to others.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.noMatch("request", v, on(t.A, disc()))
		c, result := t.askedOf(v, t.A)
		t.must(c.Reject())
		t.wantErr("request", <-result, vipl.ErrRejected)
		t.state(v, vipl.Idle)
	}),
	rule("local/attributes-must-match", "Between two VIs of one NIC levels must match, too.", local(func(t *T) {
		t.mismatch(at(vipl.ReliableDelivery), at(vipl.ReliableReception), vipl.ErrInvalidReliabilityLevel)
	})),
	rule("local/a-vi-does-not-meet-itself", "A VI cannot accept its own request: it is not Idle.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		c, result := t.askedOf(v, t.A)
		t.wantErr("accept", c.Accept(v), vipl.ErrInvalidState)
		t.must(c.Reject())
		t.wantErr("request", <-result, vipl.ErrRejected)
		t.state(v, vipl.Idle)
	}),
	rule("local/one-cq-for-both-ends", "Both ends of a connection may share one CQ.", func(t *T) {
		const count = 20
		cq := t.cq(t.A, 1)
		a := at(vipl.ReliableReception)
		v, w := t.viOn(t.A, a, cq, cq), t.viOn(t.A, a, cq, cq)
		t.join(v, w)
		x := t.block(t.A, 2*count, 64)
		x.recvs(w, count, 64)
		for i := range count {
			x.send(v, count+i, 64)
		}
		seen := t.entries(cq, 2*count)
		equal(t, "sends", seen[entry{v, false}], count)
		equal(t, "receives", seen[entry{w, true}], count)
	}),
	rule("local/beside-remote-connections", "Local and remote connections of one NIC go on side by side.", func(t *T) {
		const rounds = 50
		v, w := t.localPair(vipl.ReliableDelivery)
		va, vb := t.pair(vipl.ReliableDelivery)
		local, x, y := t.block(t.A, 2, 5000), t.block(t.A, 1, 5000), t.block(t.B, 1, 5000)
		for k := range rounds {
			local.recv(w, 1, 5000)
			y.recv(vb, 0, 5000)
			fill(local.buf(0), k)
			x.sendMessage(va, 0, 5000, k+1)
			local.send(v, 0, 5000)
			t.received(w, 0)
			t.received(vb, 0)
			t.coalesces("local message", local.buf(1), k)
			t.coalesces("remote message", y.buf(0), k+1)
			t.sent(v, 0)
			t.sent(va, 0)
		}
	}),
	rule("local/many-at-once", "Many local connections of one NIC are used at once.", func(t *T) {
		const pairs, rounds = 8, 10
		var group sync.WaitGroup
		for range pairs {
			v, w := t.localPair(vipl.ReliableReception)
			x := t.block(t.A, 2, 3000)
			group.Go(func() {
				for k := range rounds {
					fill(x.buf(0), k)
					err := pass(v, x, 0, w, x, 1)
					if err != nil || !bytes.Equal(x.buf(0), x.buf(1)) {
						t.Errorf("round %d: %v, or other bytes", k, err)
						return
					}
				}
			})
		}
		group.Wait()
	}),
}

// localPair makes a connected pair of VIs of A, open for every RDMA that the
// level has.
func (t *T) localPair(level vipl.ReliabilityLevel) (v, w *vipl.VI) {
	t.Helper()
	a := vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery}
	v, w = t.vi(t.A, a), t.vi(t.A, a)
	t.join(v, w)
	return v, w
}
