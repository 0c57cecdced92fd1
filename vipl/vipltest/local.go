package vipltest

import "viaxdp/vipl"

// Two VIs of one NIC connected with each other: all rules of connections hold.
var localRules = []Rule{
	rule("local/two-vis-of-one-nic-connect", "Two VIs of one NIC handle connect with each other, by the NIC's own address.", local(requestMeetsWait)),
	rule("local/messages-of-all-sizes", "Messages of 0 bytes to the maximum go both ways between two VIs of one NIC.", local(eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, t.A.Query().MaxTransferSize)
		carry(carryMessage).sizesBetween(t, level, a, b)
		carry(carryMessage).sizesBetween(t, level, b, a)
	}))),
	rule("local/messages-in-order", "Messages between two VIs of one NIC arrive in order, also when both send at once.", local(eachLevel(bothWays(200)))),
	rule("local/immediate-data", "Immediate data goes between two VIs of one NIC, with and without a message.", local(eachLevel(immediateData))),
	rule("local/rdma-write", "RDMA writes, with and without immediate data, go between two VIs of one NIC.", local(eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		carry(carryWrite).sizes(t, level)
		writeImmediate(t, level)
	}))),
	rule("local/rdma-read", "RDMA reads go between two VIs of one NIC.", local(eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		carry(carryRead).sizes(t, level)
		readBothWays(t, level)
	}))),
	rule("local/protection-holds", "Of two VIs of one NIC, too, each decides about RDMA to its memory: by its enables and its tag.", local(func(t *T) {
		mine, other := t.tag(t.A), t.tag(t.A)
		allOpen := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: mine, EnableRDMAWrite: true})
		wrongTag := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: other, EnableRDMAWrite: true})
		closed := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: mine, EnableRDMARead: true})
		for _, c := range []struct {
			what            string
			region          *vipl.Region
			enable, refused bool
		}{
			{"all open", allOpen, true, false},
			{"tag of another VI", wrongTag, true, true},
			{"region not open", closed, true, true},
			{"VI not open", allOpen, false, true},
		} {
			t.sub(c.what, func(t *T) {
				a, b := t.endsOf(at(vipl.ReliableReception),
					vipl.VIAttributes{Level: vipl.ReliableReception, Ptag: mine, EnableRDMAWrite: c.enable}, 1, 1, 64)
				clear(c.region.Bytes())
				fill(a.buf(0), 1)
				a.write(0, 64, c.region.Remote(0))
				if !c.refused {
					a.sent(vipl.StatusOpRDMAWrite)
					t.holds("written", c.region.Bytes(), 1)
					return
				}
				a.sent(writeRefused)
				t.untouched("the target", c.region.Bytes())
				t.states(vipl.Error, a.v, b.v)
				t.asyncErrors(b.v, vipl.ErrorRDMAWriteProtection, vipl.ErrorConnLost)
			})
		}
	})),
	rule("local/empty-receive-queue", "A message that meets an empty receive queue is dropped on an unreliable VI and breaks the connection on a reliable one.", local(eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		a.send(0, 64)
		t.asyncError(b.v, vipl.ErrorRecvQueueEmpty)
		switch level {
		case vipl.UnreliableDelivery:
			a.sent()
			t.stays(a.v, vipl.Connected)
			a.message(b, 64, 1)
			return
		case vipl.ReliableReception:
			a.sent(vipl.StatusRemoteDescError)
		}
		t.states(vipl.Error, a.v, b.v)
		t.asyncErrors(a.v, vipl.ErrorConnLost)
		t.asyncErrors(b.v, vipl.ErrorRecvQueueEmpty, vipl.ErrorConnLost)
	}))),
	rule("local/disconnect", "When one of two VIs of one NIC disconnects, the other goes to Error, flushed, with CONN_LOST; both connect again.", local(func(t *T) {
		everyLevel(peerDisconnect)(t)
		eachLevel(reconnect)(t)
	})),
	rule("local/no-match-and-reject", "Requests to the NIC's own address get NO_MATCH and REJECT as those to others.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.noMatch("request", v, on(t.A, disc()))
		t.reject(t.asked(v, t.A))
		t.state(v, vipl.Idle)
	}),
	rule("local/attributes-must-match", "Between two VIs of one NIC levels must match, too.", local(func(t *T) {
		t.mismatch(at(vipl.ReliableDelivery), at(vipl.ReliableReception), vipl.ErrInvalidReliabilityLevel)
	})),
	rule("local/a-vi-does-not-meet-itself", "A VI cannot accept its own request: it is not Idle.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		c, result := t.asked(v, t.A)
		t.wantErr("accept", c.Accept(v), vipl.ErrInvalidState)
		t.reject(c, result)
		t.state(v, vipl.Idle)
	}),
	rule("local/one-cq-for-both-ends", "Both ends of a connection may share one CQ.", func(t *T) {
		const count = 20
		cq := t.cq(t.A, 1)
		v, w := t.viOn(t.A, at(vipl.ReliableReception), cq, cq), t.viOn(t.A, at(vipl.ReliableReception), cq, cq)
		t.join(v, w)
		t.block(t.A, count, 64).on(w).recvs(count, 64)
		t.block(t.A, count, 64).on(v).sends(count, 64)
		seen := t.entries(cq, 2*count)
		equal(t, "sends", seen[entry{v, false}], count)
		equal(t, "receives", seen[entry{w, true}], count)
	}),
	rule("local/beside-remote-connections", "Local and remote connections of one NIC go on side by side.", func(t *T) {
		const rounds, size = 50, 5000
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, size)
		var c, d *end
		local(func(t *T) { c, d = t.ends(vipl.ReliableDelivery, 1, 1, size) })(t)
		for k := range rounds {
			d.recv(0, size)
			b.recv(0, size)
			a.sendMessage(0, size, k+1)
			c.sendMessage(0, size, k)
			d.arrived(0, size, k)
			b.arrived(0, size, k+1)
			c.sent()
			a.sent()
		}
	}),
	rule("local/many-at-once", "Many local connections of one NIC are used at once.", local(func(t *T) {
		const pairs, rounds = 8, 10
		var as, bs [pairs]*end
		for i := range pairs {
			as[i], bs[i] = t.ends(vipl.ReliableReception, 1, 1, 3000)
		}
		together(pairs, func(i int) {
			for k := range rounds {
				fill(as[i].buf(0), k)
				t.wantErr("message", pass(as[i], bs[i]), nil)
				t.holds("message", bs[i].buf(0), k)
			}
		})
	})),
}
