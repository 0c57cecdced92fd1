package vipltest

import (
	"bytes"
	"sync"

	"viaxdp/vipl"
)

// Two VIs of one NIC connected with each other: all rules of connections hold.
var localRules = []Rule{
	{
		ID:   "local/two-vis-of-one-nic-connect",
		Text: "Two VIs of one NIC handle connect with each other, by the NIC's own address.",
		run:  localConnect,
	},
	{
		ID:   "local/messages-of-all-sizes",
		Text: "Messages of 0 bytes to the maximum go both ways between two VIs of one NIC.",
		run:  localSizes,
	},
	{
		ID:   "local/messages-in-order",
		Text: "Messages between two VIs of one NIC arrive in order, also when both send at once.",
		run:  localOrder,
	},
	{
		ID:   "local/immediate-data",
		Text: "Immediate data goes between two VIs of one NIC, with and without a message.",
		run:  localImmediate,
	},
	{
		ID:   "local/rdma-write",
		Text: "RDMA writes, with and without immediate data, go between two VIs of one NIC.",
		run:  localWrite,
	},
	{
		ID:   "local/rdma-read",
		Text: "RDMA reads go between two VIs of one NIC.",
		run:  localRead,
	},
	{
		ID:   "local/protection-holds",
		Text: "Of two VIs of one NIC, too, each decides about RDMA to its memory: by its enables and its tag.",
		run:  localProtection,
	},
	{
		ID:   "local/empty-receive-queue",
		Text: "A message that meets an empty receive queue is dropped on an unreliable VI and breaks the connection on a reliable one.",
		run:  localEmpty,
	},
	{
		ID:   "local/disconnect",
		Text: "When one of two VIs of one NIC disconnects, the other goes to Error, flushed, with CONN_LOST; both connect again.",
		run:  localDisconnect,
	},
	{
		ID:   "local/no-match-and-reject",
		Text: "Requests to the NIC's own address get NO_MATCH and REJECT as those to others.",
		run:  localRefused,
	},
	{
		ID:   "local/attributes-must-match",
		Text: "Between two VIs of one NIC levels must match, too.",
		run:  localMismatch,
	},
	{
		ID:   "local/a-vi-does-not-meet-itself",
		Text: "A VI cannot accept its own request: it is not Idle.",
		run:  localSelf,
	},
	{
		ID:   "local/one-cq-for-both-ends",
		Text: "Both ends of a connection may share one CQ.",
		run:  localCQ,
	},
	{
		ID:   "local/beside-remote-connections",
		Text: "Local and remote connections of one NIC go on side by side.",
		run:  localBeside,
	},
	{
		ID:   "local/many-at-once",
		Text: "Many local connections of one NIC are used at once.",
		run:  localMany,
	},
}

// localPair makes a connected pair of VIs of A, open for every RDMA that the
// level has.
func (t *T) localPair(level vipl.ReliabilityLevel) (v, w *vipl.VI) {
	t.Helper()
	a := vipl.ViAttributes{Level: level, EnableRdmaWrite: true, EnableRdmaRead: level != vipl.UnreliableDelivery}
	v, w = t.vi(t.A, a), t.vi(t.A, a)
	t.join(v, w)
	return v, w
}

func localConnect(t *T) {
	for _, level := range allLevels {
		a := vipl.ViAttributes{Level: level}
		v, w := t.vi(t.A, a), t.vi(t.A, a)
		c, result := t.askedOf(v, t.A)
		if host := t.A.Query().Address; c.Remote().Host != host {
			t.Errorf("the requester is %v, want %v", c.Remote().Host, host)
		}
		t.must(c.Accept(w))
		t.must(<-result)
		t.state(v, vipl.Connected)
		t.state(w, vipl.Connected)
	}
}

func localSizes(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		x := t.block(t.A, 2, vipl.MaxTransferSize)
		for k, n := range []int{0, 1, 63, 1500, 4096, 65536, 100001, vipl.MaxTransferSize} {
			for _, way := range []struct{ from, to *vipl.VI }{{v, w}, {w, v}} {
				clear(x.buf(1))
				x.recv(way.to, 1, n)
				fill(x.buf(0)[:n], k)
				x.send(way.from, 0, n)
				if d := t.received(way.to, 0); int(d.Length) != n {
					t.Errorf("%d bytes arrived of %d", d.Length, n)
				}
				t.holds("message", x.buf(1)[:n], k)
				t.sent(way.from, 0)
			}
		}
	})
}

func localOrder(t *T) {
	const count, size = 200, 2000
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		ways := []struct {
			from, to *vipl.VI
			x        *block
		}{{v, w, t.block(t.A, 2*count, size)}, {w, v, t.block(t.A, 2*count, size)}}
		for _, way := range ways {
			for i := range count {
				way.x.recv(way.to, i, size)
				fill(way.x.buf(count+i), i)
			}
		}
		for i := range count {
			for _, way := range ways {
				way.x.send(way.from, count+i, size)
			}
		}
		for _, way := range ways {
			for i := range count {
				if t.received(way.to, 0) != way.x.desc[i] {
					t.Errorf("receive %d: another descriptor", i)
				}
				t.holds("message", way.x.buf(i), i)
				t.sent(way.from, 0)
			}
		}
	})
}

func localImmediate(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		x := t.block(t.A, 2, 64)
		for k, n := range []int{64, 0} {
			x.recv(w, 1, n)
			fill(x.buf(0), k)
			x.sendImmediate(v, 0, n, uint32(0xabcd0000+k))
			d := t.received(w, vipl.StatusImmediate)
			if imm, ok := d.Immediate(); !ok || imm != uint32(0xabcd0000+k) || int(d.Length) != n {
				t.Errorf("immediate data %#x, %v, with %d bytes", imm, ok, d.Length)
			}
			t.sent(v, 0)
		}
	})
}

func localWrite(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		x, y := t.block(t.A, 2, 100_000), t.block(t.A, 2, 100_000)
		for k, n := range []int{1, 5000, 100_000} {
			clear(y.buf(0))
			fill(x.buf(0), k)
			x.write(v, 0, n, y.remote(0))
			y.recv(w, 1, 64)
			x.writeImmediate(v, 1, 0, y.remote(0), uint32(k))
			d := t.received(w, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
			if imm, _ := d.Immediate(); imm != uint32(k) || d.Length != 0 {
				t.Errorf("immediate data %d, length %d", imm, d.Length)
			}
			t.holds("written", y.buf(0)[:n], k)
			t.untouched("behind it", y.buf(0)[n:])
			t.sent(v, vipl.StatusOpRDMAWrite)
			t.sent(v, vipl.StatusOpRDMAWrite)
		}
	})
}

func localRead(t *T) {
	t.eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		x, y := t.block(t.A, 1, 100_000), t.block(t.A, 1, 100_000)
		for k, n := range []int{0, 1, 5000, 100_000} {
			clear(x.buf(0))
			fill(y.buf(0), k)
			x.read(v, 0, n, y.remote(0))
			t.sent(v, vipl.StatusOpRDMARead)
			t.holds("read", x.buf(0)[:n], k)
			t.untouched("behind it", x.buf(0)[n:])
			fill(x.buf(0), k+10)
			y.read(w, 0, n, x.remote(0))
			t.sent(w, vipl.StatusOpRDMARead)
			t.holds("read by the other", y.buf(0)[:n], k+10)
		}
	})
}

func localProtection(t *T) {
	mine, other := t.tag(t.A), t.tag(t.A)
	x := t.block(t.A, 1, 64)
	open := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: mine, EnableRdmaWrite: true})
	wrongTag := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: other, EnableRdmaWrite: true})
	closed := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: mine, EnableRdmaRead: true})
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
			v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableReception})
			w := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableReception, Ptag: mine, EnableRdmaWrite: c.enable})
			t.join(v, w)
			clear(c.region.Bytes())
			fill(x.buf(0), 1)
			x.write(v, 0, 64, c.region.Remote(0))
			if !c.refused {
				t.sent(v, vipl.StatusOpRDMAWrite)
				t.holds("written", c.region.Bytes(), 1)
				return
			}
			t.sent(v, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError)
			t.untouched("the target", c.region.Bytes())
			t.state(v, vipl.Error)
			t.state(w, vipl.Error)
			t.asyncErrors(w, vipl.ErrorRDMAWriteProtection, vipl.ErrorConnLost)
		})
	}
}

func localEmpty(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
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
		t.state(v, vipl.Error)
		t.state(w, vipl.Error)
		t.asyncErrors(v, vipl.ErrorConnLost)
		t.asyncErrors(w, vipl.ErrorRecvQueueEmpty, vipl.ErrorConnLost)
	})
}

func localDisconnect(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		v, w := t.localPair(level)
		x := t.block(t.A, 1, 64)
		for range 3 {
			x.recv(w, 0, 64)
			t.must(v.Disconnect())
			t.state(v, vipl.Idle)
			t.state(w, vipl.Error)
			t.received(w, vipl.StatusFlushed)
			t.asyncError(w, vipl.ErrorConnLost)
			t.must(w.Disconnect())
			v, w = w, v
			t.join(v, w)
		}
	})
}

func localRefused(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	t.noMatch("request", v, vipl.NetAddress{Host: t.A.Query().Address, Discriminator: disc()})
	c, result := t.askedOf(v, t.A)
	t.must(c.Reject())
	t.wantErr("request", <-result, vipl.ErrRejected)
	t.state(v, vipl.Idle)
}

func localMismatch(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	w := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableReception})
	c, result := t.askedOf(v, t.A)
	t.wantErr("accept", c.Accept(w), vipl.ErrInvalidReliabilityLevel)
	t.state(v, vipl.ConnectPending)
	t.must(w.SetAttributes(vipl.ViAttributes{Level: vipl.ReliableDelivery}))
	t.must(c.Accept(w))
	t.must(<-result)
}

func localSelf(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	c, result := t.askedOf(v, t.A)
	t.wantErr("accept", c.Accept(v), vipl.ErrInvalidState)
	t.must(c.Reject())
	t.wantErr("request", <-result, vipl.ErrRejected)
	t.state(v, vipl.Idle)
}

func localCQ(t *T) {
	const count = 20
	cq := t.cq(t.A, 1)
	a := vipl.ViAttributes{Level: vipl.ReliableReception}
	v, w := t.viOn(t.A, a, cq, cq), t.viOn(t.A, a, cq, cq)
	t.join(v, w)
	x := t.block(t.A, 2*count, 64)
	for i := range count {
		x.recv(w, i, 64)
	}
	for i := range count {
		x.send(v, count+i, 64)
	}
	seen := make(map[entry]int)
	for range 2 * count {
		vi, recv, err := cq.Wait(patience)
		t.must(err)
		seen[entry{vi, recv}]++
		done := vi.SendDone
		if recv {
			done = vi.RecvDone
		}
		_, err = done()
		t.must(err)
	}
	if seen[entry{v, false}] != count || seen[entry{w, true}] != count {
		t.Errorf("entries: %d of sends, %d of receives", seen[entry{v, false}], seen[entry{w, true}])
	}
}

func localBeside(t *T) {
	const rounds = 50
	v, w := t.localPair(vipl.ReliableDelivery)
	va, vb := t.pair(vipl.ReliableDelivery)
	local, x, y := t.block(t.A, 2, 5000), t.block(t.A, 1, 5000), t.block(t.B, 1, 5000)
	for k := range rounds {
		local.recv(w, 1, 5000)
		y.recv(vb, 0, 5000)
		fill(local.buf(0), k)
		fill(x.buf(0), k+1)
		x.send(va, 0, 5000)
		local.send(v, 0, 5000)
		t.received(w, 0)
		t.received(vb, 0)
		t.holds("local message", local.buf(1), k)
		t.holds("remote message", y.buf(0), k+1)
		t.sent(v, 0)
		t.sent(va, 0)
	}
}

func localMany(t *T) {
	const pairs, rounds = 8, 10
	var group sync.WaitGroup
	for range pairs {
		v, w := t.localPair(vipl.ReliableReception)
		x := t.block(t.A, 2, 3000)
		group.Go(func() {
			for k := range rounds {
				fill(x.buf(0), k)
				err := w.PostRecv(x.prepare(1, 3000), x.Handle())
				if err == nil {
					err = v.PostSend(x.prepare(0, 3000), x.Handle())
				}
				if err == nil {
					_, err = w.RecvWait(patience)
				}
				if err == nil {
					_, err = v.SendWait(patience)
				}
				if err != nil || !bytes.Equal(x.buf(0), x.buf(1)) {
					t.Errorf("round %d: %v, or other bytes", k, err)
					return
				}
			}
		})
	}
	group.Wait()
}
