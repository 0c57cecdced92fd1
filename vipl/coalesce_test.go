package vipl_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

const packMessages = 60

// packPair is a pair of VIs. b has receives of room bytes, and a's frames are acknowledged late.
func packPair(t testing.TB, level vipl.ReliabilityLevel, receives, room int) (n *memoryNet, va, vb *vipl.VI, xa, xb *box) {
	t.Helper()
	n, va, vb = openConnected(t, memoryConfig{bubble: true}, level)
	xa, xb = packBoxes(t, n, va, vb, receives, room)
	return n, va, vb, xa, xb
}

// packBoxes makes their boxes. b's is open to a.
func packBoxes(t testing.TB, n *memoryNet, va, vb *vipl.VI, receives, room int) (xa, xb *box) {
	t.Helper()
	polling(t, n, va, vb)
	n.b.queue.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
	xa, xb = newBox(t, n.a.NIC, packMessages, 256), openBoxOf(t, n.b.NIC, packMessages, 256)
	postRecvs(t, vb, xb, receives, room)
	return xa, xb
}

// polling makes a's background goroutine detect that the program polls. It then stays out of the way for a
// millisecond of the bubble's time. If it already sleeps, the frame wakes it, and it sees the poll before;
// otherwise it runs at most a millisecond later, and must not do so between the poll and the arrival.
func polling(t testing.TB, n *memoryNet, va, vb *vipl.VI) {
	t.Helper()
	x, y := newBox(t, n.a.NIC, 1, 8), newBox(t, n.b.NIC, 1, 8)
	postRecv(t, va, x, 0, 8)
	synctest.Wait() // so that no goroutine holds the engine's lock, which would hide a poll
	n.a.Poll()
	postSend(t, vb, y, 0, 8)
	sent(t, vb, 0)
	time.Sleep(300 * time.Microsecond)
	received(t, va, 0)
	time.Sleep(100 * time.Microsecond) // off the beat of its clock
}

// openWindow has a send messages over a path as long as that of the test, so that its congestion window holds more frames
// than a new connection's. arrived does not count them.
func openWindow(t testing.TB, n *memoryNet, va, vb *vipl.VI) {
	t.Helper()
	n.b.queue.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
	x, y := newBox(t, n.a.NIC, 1, 8), newBox(t, n.b.NIC, 1, 8)
	for range 3 {
		postRecv(t, vb, y, 0, 8)
		postSend(t, va, x, 0, 8)
		time.Sleep(10 * time.Millisecond)
		sent(t, va, 0)
		received(t, vb, 0)
	}
	n.b.queue.SetFaults(xdpnictest.Faults{})
	n.before = n.b.Counters().Messages
}

// arrived checks how many messages have reached b.
func arrived(t *testing.T, n *memoryNet, want uint64) {
	t.Helper()
	synctest.Wait() // b's background goroutine may be at it
	n.b.Poll()
	equal(t, "Messages", n.b.Counters().Messages-n.before, want)
}

func packSize(k int) int { return k * 7 % 200 }

// Small messages and RDMA writes that are posted faster than frames are acknowledged, or as a list, share frames, and
// arrive as if they had not: each to its own place and in order, with immediate data or without.
func TestSmallMessagesShareFrames(t *testing.T) {
	for name, list := range map[string]bool{"one by one": false, "list": true} {
		t.Run(name, func(t *testing.T) {
			eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
				n, va, vb, xa, xb := packPair(t, level, 0, 256)
				for k := range packMessages {
					fillPattern(xa.buf[k][:packSize(k)], k)
					xa.prepare(k, packSize(k))
					if k%4 > 1 {
						xa.desc[k].SetRDMAWrite(xb.remote(k), segment(xa, k, packSize(k)))
					}
					if k%2 == 1 {
						xa.desc[k].SetImmediate(uint32(k))
					}
					if k%4 != 2 {
						postRecv(t, vb, xb, k, 256)
					}
				}
				if list {
					postAll(t, va, xa)
				} else {
					for k := range packMessages {
						postDesc(t, va, xa, k)
					}
				}
				for k := range packMessages {
					want := []vipl.Status{
						vipl.StatusOpReceive, vipl.StatusOpReceive | vipl.StatusImmediate, 0, vipl.StatusOpRemoteRDMAWrite | vipl.StatusImmediate,
					}[k%4]
					if k%4 != 2 {
						d, err := vb.RecvWait(ackDelay)
						checkDone(t, "receive", d, err, want)
						fatalIf(t, d != xb.desc[k] || int(d.Length) != packSize(k) || k%2 == 1 && d.ImmediateData != uint32(k),
							"message %d: another descriptor, %d bytes, immediate %d", k, d.Length, d.ImmediateData)
					}
					if k%4 < 2 {
						sent(t, va, 0)
					} else {
						sent(t, va, vipl.StatusOpRDMAWrite)
					}
				}
				synctest.Wait()
				for k := range packMessages {
					checkPattern(t, xb.buf[k][:packSize(k)], k)
				}
				a, b := n.a.Counters(), n.b.Counters()
				errorIf(t, a.Packed < packMessages/2 || b.Frames > packMessages/2 || b.Writes != packMessages/2,
					"%d of %d messages shared %d frames, %d writes", a.Packed, packMessages, b.Frames, b.Writes)
			})
		})
	}
}

// A single message is sent at once, and so are the first few of many. The others are sent when a goroutine
// waits for the port, or on disconnecting.
func TestWaitingMessagesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb, xa, _ := packPair(t, vipl.ReliableDelivery, packMessages, 256)
		for k := range uint64(4) {
			postSend(t, va, xa, int(k), 8)
			arrived(t, n, k+1)
		}
		postSend(t, va, xa, 4, 8)
		arrived(t, n, 4)
		for range 5 {
			sent(t, va, 0) // the last one makes the fifth go
		}
		arrived(t, n, 5)
		for k := 5; k < 8; k++ {
			postSend(t, va, xa, k, 8)
		}
		must(t, va.Disconnect())
		for range 3 {
			sent(t, va, 0)
		}
		arrived(t, n, 8)
		stateIs(t, vb, vipl.Error)
	})
}

// The messages of a program that posts and makes no further call are sent all the same.
func TestWaitingMessagesOfABusyProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, _, xa, _ := packPair(t, vipl.ReliableDelivery, packMessages, 256)
		n.b.queue.SetFaults(xdpnictest.Faults{Loss: 1}) // no acknowledgement comes
		// It has been spinning for long, so that the background goroutine
		// looks in every 32 ms only.
		for range 1000 {
			for range 1000 {
				n.a.Poll()
			}
			time.Sleep(100 * time.Microsecond)
		}
		for k := range 7 {
			postSend(t, va, xa, k, 8)
		}
		time.Sleep(5 * time.Millisecond) // a computes
		arrived(t, n, 7)
	})
}

// Frames of a stream wait on the ring for one doorbell, except the first few, and none waits for long.
func TestDoorbellWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		openWindow(t, n, va, vb)
		polling(t, n, va, vb)
		n.b.queue.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond}) // acknowledgements are slow
		const size = 1000
		xa, xb := newBox(t, n.a.NIC, packMessages, size), newBox(t, n.b.NIC, packMessages, size)
		for k := range packMessages {
			postRecv(t, vb, xb, k, size)
		}
		posted := 0
		post := func(count int) {
			t.Helper()
			for range count {
				postMessage(t, va, xa, posted, size, posted)
				posted++
			}
		}
		post(4)
		arrived(t, n, 4)
		post(31)
		arrived(t, n, 4)
		post(1)
		arrived(t, n, 36)
		post(3)
		arrived(t, n, 36)
		time.Sleep(2500 * time.Microsecond) // a computes; no acknowledgement has come yet
		arrived(t, n, 39)
		post(packMessages - posted)
		for k := range packMessages {
			d := received(t, vb, 0)
			fatalIf(t, d != xb.desc[k], "message %d: another descriptor", k)
			checkPattern(t, xb.buf[k][:size], k)
			sent(t, va, 0)
		}
	})
}

// What waits is sent after the program has polled a few times in a row without finding anything.
func TestPollsInVain(t *testing.T) {
	for _, size := range []int{8, 1000} {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
			polling(t, n, va, vb)
			n.b.queue.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
			xa, xb := newBox(t, n.a.NIC, 8, size), newBox(t, n.b.NIC, 8, size)
			for k := range 8 {
				postRecv(t, vb, xb, k, size)
			}
			for k := range 7 {
				postSend(t, va, xa, k, size)
				n.a.Poll() // one between two posts does not count
			}
			arrived(t, n, 4)
			n.a.Poll()
			n.a.Poll()
			arrived(t, n, 4)
			n.a.Poll()
			arrived(t, n, 7)
		})
	}
}

// Messages that are posted no faster than frames can be sent are sent at once, however much is under way.
func TestPacedMessagesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, _, xa, _ := packPair(t, vipl.ReliableDelivery, packMessages, 256)
		for k := range uint64(20) {
			time.Sleep(2 * time.Microsecond)
			postSend(t, va, xa, int(k), 8)
			arrived(t, n, k+1)
		}
		packed := n.a.Counters().Packed
		errorIf(t, packed > 0, "%d messages waited for company", packed)
	})
}

// Messages that are posted at a pace are sent at once, also by a program that polls between two posts, right after
// a stream and long after it.
func TestPacedMessagesBehindAStream(t *testing.T) {
	for _, rest := range []time.Duration{2 * time.Microsecond, 10 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
			openWindow(t, n, va, vb)
			xa, _ := packBoxes(t, n, va, vb, packMessages, 256)
			for k := range 10 {
				postSend(t, va, xa, k, 8)
			}
			packed := n.a.Counters().Packed
			fatalIf(t, packed > 0, "%d messages were sent although others may follow", packed)
			for range vipl.CoalescePolls {
				n.a.Poll()
			}
			arrived(t, n, 10)
			fatalIf(t, n.a.Counters().Packed == 0, "there was no stream")
			time.Sleep(rest)
			n.a.Poll()
			for k := range uint64(20) {
				postSend(t, va, xa, 10+int(k), 8)
				arrived(t, n, 11+k)
				n.a.Poll()
				time.Sleep(2 * time.Microsecond)
			}
			time.Sleep(10 * time.Millisecond) // the peer has acknowledged all, and the stream is over
			for k := range uint64(3) {
				postSend(t, va, xa, 30+int(k), 8)
				arrived(t, n, 31+k)
			}
		})
	}
}

// If one of the operations of a frame ends the connection, those before it are done, and none of it or after it is.
func TestBrokenInAFrame(t *testing.T) {
	const bad, size = 20, 40
	for name, c := range map[string]struct {
		receives   int
		spoil      func(t *testing.T, n *memoryNet, xa, xb *box) // changes operation or receive bad
		send, recv vipl.Status                                   // of these; recv 0: nothing is posted there
		write      bool
		immediate  bool
	}{
		"receive queue empty": {receives: bad, send: vipl.StatusRemoteDescError},
		"message too long": {
			receives: bad + 1, send: vipl.StatusLengthError, recv: vipl.StatusLengthError,
			spoil: func(_ *testing.T, _ *memoryNet, _, xb *box) {
				xb.prepare(bad, 4)
			},
		},
		"past the region": {
			receives: bad + 1, send: vipl.StatusRemoteDescError, recv: vipl.StatusProtectionError,
			spoil: func(t *testing.T, n *memoryNet, _, xb *box) {
				around := make([]byte, 128)
				r, err := n.b.RegisterMem(around[:64], vipl.MemAttributes{Ptag: n.b.CommonPtag()})
				must(t, err)
				xb.desc[bad].SetSegments(r.Segment(64-size+1, size))
				t.Cleanup(func() {
					errorIf(t, !bytes.Equal(around[64:], make([]byte, 64)), "bytes behind the region were written")
				})
			},
		},
		"wrong receive": {
			receives: packMessages, send: vipl.StatusFlushed, recv: vipl.StatusFormatError,
			spoil: func(_ *testing.T, _ *memoryNet, _, xb *box) {
				xb.desc[bad].Control = vipl.ControlQFence
			},
		},
		"write to other memory": {
			write: true, send: vipl.StatusRemoteRDMAError,
			spoil: func(_ *testing.T, _ *memoryNet, xa, xb *box) {
				to := xb.remote(bad)
				to.Handle++
				xa.desc[bad].SetRDMAWrite(to, segment(xa, bad, size))
			},
		},
		"write without a receive": {receives: bad, write: true, immediate: true, send: vipl.StatusRemoteDescError},
	} {
		inBubble(t, name, func(t *testing.T) {
			n, va, vb, xa, xb := packPair(t, vipl.ReliableReception, 0, 256)
			arrives, op := vipl.Status(vipl.StatusOpReceive), vipl.Status(0)
			for k := range packMessages {
				fillPattern(xa.buf[k][:size], k)
				xa.prepare(k, size)
				xb.prepare(k, size)
				if c.write {
					op = vipl.StatusOpRDMAWrite
					xa.desc[k].SetRDMAWrite(xb.remote(k), segment(xa, k, size))
				}
				if c.immediate {
					arrives = vipl.StatusOpRemoteRDMAWrite | vipl.StatusImmediate
					xa.desc[k].SetImmediate(uint32(k))
				}
			}
			if c.spoil != nil {
				c.spoil(t, n, xa, xb)
			}
			must(t, errOf(vb.PostRecvs(xb.desc[:c.receives], xb.region.Handle())))
			postAll(t, va, xa)
			for k := range packMessages {
				recv, send := arrives, vipl.Status(0)
				switch {
				case k == bad:
					recv, send = c.recv|vipl.StatusOpReceive, c.send
				case k > bad:
					recv, send = vipl.StatusFlushed|vipl.StatusOpReceive, vipl.StatusFlushed
				}
				sent(t, va, send|op)
				if k < c.receives {
					d, err := vb.RecvWait(ackDelay)
					checkDone(t, "receive", d, err, recv)
				}
				if k < bad {
					checkPattern(t, xb.buf[k][:size], k)
				} else {
					errorIf(t, k > bad && xb.buf[k][0] != 0, "operation %d has been carried out", k)
				}
			}
			stateIs(t, vb, vipl.Error)
			errorIf(t, n.a.Counters().Packed == 0, "nothing shared a frame")
		})
	}
}

// Messages of all lengths that may share a frame do so in frames of the link's MTU (newMemoryNet looks).
func TestSharedFramesFit(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, queue: xdpnictest.Config{MaxFrame: 14 + 1500}}, level,
			packMessages, packMessages, 1024)
		polling(t, n, va, vb)
		n.b.queue.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
		rng := rand.New(rand.NewPCG(testsize.Seed(t), 0))
		for range 20 {
			var lengths [packMessages]int
			for k := range packMessages {
				postRecv(t, vb, xb, k, 1024)
			}
			for k := range packMessages {
				lengths[k] = rng.IntN(800)
				postMessage(t, va, xa, k, lengths[k], k)
			}
			for k := range packMessages {
				receivedMessage(t, vb, xb.buf[k][:lengths[k]], k)
				sent(t, va, 0)
			}
		}
		errorIf(t, n.a.Counters().Packed == 0, "nothing shared a frame")
	})
}

// belled is a queue with a hook that runs before the doorbell rings. All under the port's lock.
type belled struct {
	*xdpnictest.Queue
	rings func()
	left  int // entries that the driver has not taken yet
}

func (b *belled) Pending() int { return b.left + b.Queue.Pending() }

func (b *belled) Flush() error {
	if b.Pending() > 0 && b.rings != nil {
		b.rings()
		b.left = 1 // a driver with zero-copy takes the entry in its own time
	} else {
		b.left = 0
	}
	return b.Queue.Flush()
}

// A single message rings the doorbell once, before its frame is recorded; also if the driver takes the entry
// asynchronously, as in zero-copy mode.
func TestDoorbellFirst(t *testing.T) {
	const messages = 10
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			bell := &belled{}
			n := newMemoryNet(t, memoryConfig{port: over(bell, &bell.Queue)})
			va, vb := connect(t, n.a.NIC, n.b.NIC, level)
			xa, xb := newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 1, 64)
			xa.desc[0].SetSegments(xa.segs[0])
			xb.desc[0].SetSegments(xb.segs[0])
			alone := 0
			for range messages {
				must(t, va.PostRecv(xa.desc[0], xa.region.Handle()))
				var rung []uint32
				before := vb.NextFrame()
				must(t, vb.PostSendSeen(xb.desc[0], xb.region.Handle(), &bell.rings, func(nextFrame uint32) {
					rung = append(rung, nextFrame)
				}))
				fatalIf(t, !poll(va), "connection ended")
				sent(t, vb, 0)
				equal(t, "after frame", vb.NextFrame(), before+1)
				if slices.Equal(rung, []uint32{before}) {
					alone++
				}
			}
			// Now and then one meets an acknowledgement that is owed, or a frame that comes.
			errorIf(t, alone == 0, "none of %d messages rang the doorbell once, before it was noted", messages)
		})
	}
}

// postAll posts all descriptors of x in one go, so that they share frames whatever
// the other side does meanwhile.
func postAll(t testing.TB, v *vipl.VI, x *box) {
	t.Helper()
	k, err := v.PostSends(x.desc, x.region.Handle())
	fatalIf(t, k != len(x.desc) || err != nil, "%d of %d posted: %v", k, len(x.desc), err)
}

// A program that is slow to answer comes to send each answer with the acknowledgement of the question, and not after
// it. A late answer among many that are sent at once does not make the peer retransmit what waits for its acknowledgement.
func TestAcknowledgementsAndLateAnswers(t *testing.T) {
	const looks = 256 // empty polls between two reads of the clock
	const early, late = 20 * time.Microsecond, 1500 * time.Microsecond
	always := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	for name, c := range map[string]struct {
		exchanges int
		answer    func(k int) time.Duration // how long the answer to question k takes
		ride      bool
	}{
		"at once":           {60, always(early), true},
		"within its time":   {60, always(400 * time.Microsecond), true},
		"late":              {60, always(late), true},
		"late now and then": {1000, func(k int) time.Duration { return map[bool]time.Duration{true: late, false: early}[k%50 == 0] }, false},
	} {
		inBubble(t, name, func(t *testing.T) {
			n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, 2, 2, 64)
			say := func(from, to *vipl.VI, x, y *box, d time.Duration) {
				postRecv(t, to, y, 0, 64)
				postSend(t, from, x, 1, 64)
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(max(d/8, early/8)) { // both poll, while the answer is made
					for range looks {
						n.a.Poll()
						n.b.Poll()
					}
				}
				must(t, errOf(to.RecvDone()))
				sent(t, from, 0)
			}
			acks := func() uint64 { return n.a.Counters().Acks + n.b.Counters().Acks }
			var before uint64
			for k := range c.exchanges {
				if k == 40 { // by then it is known how late answers are
					before = acks()
				}
				back := early
				if c.ride {
					back = c.answer(k)
				}
				say(va, vb, xa, xb, c.answer(k))
				say(vb, va, xb, xa, back)
			}
			errorIf(t, c.ride && acks()-before > 2, "%d acknowledgements of %d went alone", acks()-before, 2*(c.exchanges-40))
			again := n.a.Counters().Resent + n.b.Counters().Resent
			errorIf(t, again > 4, "%d frames were sent again", again)
		})
	}
}
