package mvich_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A rank that is no member of a communicator cannot send a message into it, even with its context and to an
// AnySource receive.
func TestMessageOfANonMember(t *testing.T) {
	w, s := newStranger(t, 2)
	alone := w.Comm().Alone(0, 40)
	s.send(within(packetOf(pktEager, 32, 3, 0, 0, []byte("abc")), 40, 0))
	s.send(within(packetOf(pktEager, 0, 0, 0, 0, nil), ofMessages, 0))
	each(t, 1, func(int) error {
		b := make([]byte, 3)
		get(w.Comm().Recv(b, 1, 0)) // what was sent before it has come
		status, there, err := alone.Iprobe(mvich.AnySource, mvich.AnyTag)
		failIf(there || err != nil, "a message of rank %d: %w", status.Source, err)
		r := get(alone.Irecv(b, mvich.AnySource, mvich.AnyTag))
		s.send(within(packetOf(pktEager, 0, 3, 0, 0, []byte("abc")), 40, 0))
		s.empty(0)
		get(w.Comm().Recv(b, 1, 0))
		status, done, err := r.Test()
		failIf(done || err != nil, "received of rank %d: %w", status.Source, err)
		failIf(!r.Cancel(), "the receive has a message")
		return nil
	})
}

// A rank whose connection fails after a packet has come from it is lost: its operations do not go on, and it cannot
// connect again. If no packet has come, it may call again.
func TestPacketBeforeFailedAdmission(t *testing.T) {
	_, w, _ := besideStranger(t, 3)
	c := w.Comm()
	r, err := c.Irecv(make([]byte, 100), 1, 0)
	noError(t, err)
	noError(t, mvich.AdmissionAfter(w, 1, packetOf(pktRequest, 32, 10, 1, 0, offerOf(2))))
	each(t, 1, func(int) error {
		return wantLost("receive", nstest.Err(r.Wait()), 1) // for data that would never come
	})
	noError(t, mvich.AdmissionAfter(w, 2, nil))
	nstest.Same(t, "dead", c.Dead(), []int{1})
}

// A rank that sends more packets than it has credits for is taken for dead.
func TestPacketWithoutCredit(t *testing.T) {
	const credits = 8
	w, s := newStranger(t, 2, mvich.WithCredits(credits))
	for i := range 2 * credits {
		s.send(within(packetOf(pktEager, 0, 0, 0, 0, nil), ofMessages, 0)) // and gives none back
		each(t, 1, func(int) error {
			_, err := w.Comm().Recv(nil, 1, 0)
			if i < credits {
				return err
			}
			return wantLost("receive", err, 1)
		})
	}
}

// Unexpected messages do not fill a rank's memory. A peer that sends eager messages after the order to stop, or too
// many envelopes, is taken for dead.
func TestUnexpectedWithoutEnd(t *testing.T) {
	const credits, most, many = 8, 20, 60
	for name, packet := range map[string][]byte{
		"eager":     packetOf(pktEager, 0, 1000, 0, 0, make([]byte, 1000)),
		"empty":     packetOf(pktEager, 0, 0, 0, 0, nil),
		"envelopes": packetOf(pktRequest, 0, 10, 1, 0, offerOf(2)),
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 2, mvich.WithCredits(credits), mvich.WithUnexpected(1000))
			mvich.BoundEnvelopes(w, most)
			each(t, 2, func(rank int) error {
				if rank == 0 {
					return wantLost("probe", nstest.Err(w.Comm().Probe(1, 99)), 1)
				}
				s.send(packetOf(pktNoop, credits, 0, 0, 0, nil))
				for i, left := 0, credits-1; i < many; i, left = i+1, left-1 {
					for left == 0 {
						b, err := s.recv()
						if err != nil {
							return nil // it is taken for dead
						}
						left += int(binary.LittleEndian.Uint16(b[2:]))
						packet[2] = 1 // a credit for the next one
					}
					s.send(within(packet, ofMessages, 0))
					packet[2] = 0
				}
				s.send(within(packetOf(pktEager, 0, 0, 0, 0, nil), ofMessages, 99))
				return nil
			})
		})
	}
}

// Nor do unexpected messages of a proper rank, without data, or with one protocol for all.
func TestFullRankGetsEnvelopes(t *testing.T) {
	for _, protocol := range []mvich.Protocol{mvich.Auto, mvich.Eager} {
		t.Run(protocol.String(), func(t *testing.T) {
			j := newJob(t, 2, jobConfig{options: with(mvich.WithUnexpected(1), mvich.WithProtocol(protocol))})
			j.run(t, func(c *mvich.Comm) error {
				if c.Rank() == 1 {
					must(c.Send(nil, 0, 0)) // with the news that it is full
					get(c.Probe(0, 1))
					must(c.Send(nil, 0, 0))
					get(c.Recv(nil, 0, 9))
					for tag := 1; tag <= 3; tag++ {
						get(c.Recv(make([]byte, 10), 0, tag))
					}
					return nil
				}
				get(c.Recv(nil, 1, 0))
				must(c.Send(make([]byte, 10), 1, 1))
				get(c.Recv(nil, 1, 0))
				var late []*mvich.Request
				for i := range 2 {
					r := get(c.Isend(make([]byte, 10*i), 1, 2+i))
					_, done, _ := r.Test()
					failIf(done, "%d bytes were sent to a rank that is full", 10*i)
					late = append(late, r)
				}
				return mvich.WaitAll(append(late, get(c.Isend(nil, 1, 9)))...)
			})
		})
	}
}

// A token identifies one rank: a rank that publishes another's token is not accepted as that rank.
func TestTokensOfOneName(t *testing.T) {
	spare := newJob(t, 1, jobConfig{}) // for its NIC
	for name, token := range map[string]string{"none": "", "that of looks": "look", "rank 0's own": "own", "one of two": "same"} {
		t.Run(name, func(t *testing.T) {
			launchers := mvich.Local(3)
			terms := make(chan string, 1)
			each(t, 3, func(rank int) error {
				if rank == 0 {
					w, err := mvich.Init(spare.hosts[0].NIC, capture{launchers[0], terms})
					if err == nil {
						err = errors.Join(errors.New("they are taken"), mvich.Shut(w))
					} else if errors.Is(err, mvich.ErrSettings) {
						return nil
					}
					return err
				}
				said := <-terms
				terms <- said
				fields := strings.Split(said, ",")
				switch {
				case token == "own" && rank == 1:
				case token == "own" || token != "same" && rank == 2:
					fields[1] = "another"
				default:
					fields[1] = token
				}
				return errors.Join(launchers[rank].Put(fmt.Sprint("mvich-", rank), strings.Join(fields, ",")), launchers[rank].Fence())
			})
		})
	}
}

// A rank on another host cannot pass for a rank whose token it knows (every rank knows all tokens).
func TestTokenOfAnother(t *testing.T) {
	j := newJob(t, 3, jobConfig{})
	nic, token := j.hosts[1].NIC, mvich.Token(j.worlds[1], 2).Discriminator
	vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, nil)
	noError(t, err)
	_, err = vi.ConnectRequest(vipl.NetAddress{Discriminator: token}, mvich.Token(j.worlds[1], 0), testTimeout)
	nstest.WantErr(t, "a call by the token of rank 2 from the host of rank 1", err, vipl.ErrRejected)
	noError(t, vi.Destroy())
	j.run(t, (*mvich.Comm).Barrier)
}

// Calls and probes that are refused after a message leave no VI, and the next call connects.
func TestRefusedBehindData(t *testing.T) {
	agent := &memorynic.Refused{Times: 3}
	j := newJob(t, 2, jobConfig{refused: agent})
	j.run(t, func(c *mvich.Comm) error {
		b := []byte("hello")
		if c.Rank() == 0 {
			return c.Send(b, 1, 7)
		}
		got := make([]byte, 5)
		_, err := c.Recv(got, 0, 7)
		failIf(err != nil || string(got) != "hello", "%q, %w", got, err)
		return nil
	})
	nstest.ErrorIf(t, agent.Times > 0, "%d were not refused", agent.Times)
	await.Until(t, "one VI is left", func() bool { return len(j.hosts[0].NIC.Status().VIs) == 1 })
}

// Protocols in offers.
const offerRGET, offerRPUT = uint32(mvich.RGET), uint32(mvich.RPUT)

// remoteOf is the memory that a request or ready packet offers.
func remoteOf(b []byte) vipl.AddressSegment {
	return vipl.AddressSegment{
		Data: binary.LittleEndian.Uint64(b[32:]), Handle: vipl.MemHandle(binary.LittleEndian.Uint32(b[40:])),
	}
}

// move reads n bytes of the other side's memory, or writes them.
func (s *stranger) move(at vipl.AddressSegment, n int, write bool) ([]byte, error) {
	s.t.Helper()
	const off = strangerRDMA
	d, err := s.region.Descriptor(off, 2)
	noError(s.t, err)
	ours := s.region.Segment(off+64, n)
	if write {
		for i := range n {
			s.region.Bytes()[off+64+i] = 'w'
		}
		d.SetRDMAWrite(at, ours)
	} else {
		d.SetRDMARead(at, ours)
	}
	if err := s.vi.PostSend(d, s.region.Handle()); err != nil {
		return nil, err
	}
	return s.region.Bytes()[off+64 : off+64+n], s.finish(d)
}

// finish waits for what was posted last.
func (s *stranger) finish(d *vipl.Descriptor) error {
	for {
		done, err := s.vi.SendWait(testTimeout)
		if done == d || err != nil {
			return err
		}
		s.done++
	}
}

// writeLast writes n bytes, and ends the message with the number of its receive.
func (s *stranger) writeLast(at vipl.AddressSegment, n int, number uint32) {
	d := get(s.region.Descriptor(strangerRDMA, 2))
	copy(s.region.Bytes()[strangerRDMA+64:][:n], bytes.Repeat([]byte{'w'}, n))
	d.SetRDMAWrite(at, s.region.Segment(strangerRDMA+64, n))
	d.SetImmediate(number)
	must(s.vi.PostSend(d, s.region.Handle()))
	_ = s.finish(d) // the other side may break the connection for it
}

// A message that is written ends with its last write, which uses a credit of the sender. If that has only one left, finish
// follows instead.
func TestWriteEnds(t *testing.T) {
	const size = 20000
	for grant, finish := range map[uint16]bool{2: true, 3: false} { // envelopes need one more than the reserve, which is one
		t.Run(fmt.Sprint(grant, " credits"), func(t *testing.T) {
			w, s := newStranger(t, 2, mvich.WithCredits(4))
			each(t, 2, func(rank int) error {
				if rank == 0 {
					return w.Comm().Send(bytes.Repeat([]byte{'x'}, size), 1, 0)
				}
				s.grant(grant)
				_, number := s.await(pktRequest)
				const mine = 77
				s.ready(size, mine, number, s.region.Remote(strangerRDMA))
				d := get(s.vi.RecvWait(testTimeout))
				if finish {
					place := d.Segment(0)
					b := s.region.Bytes()[int(place.Data-s.region.Addr()):][:d.Length]
					failIf(b[0] != pktFinish || binary.LittleEndian.Uint32(b[28:]) != mine,
						"a packet of kind %d and not finish", b[0])
				} else {
					n, ok := d.Immediate()
					failIf(!ok || n != mine, "immediate data %d, %v", n, ok)
				}
				n := bytes.Count(s.region.Bytes()[strangerRDMA:][:size], []byte{'x'})
				failIf(n != size, "%d bytes were written", n)
				return nil
			})
		})
	}
}

// After a send by RGET completes, the peer can no longer read the program's buffer.
func TestReadAfterSend(t *testing.T) {
	w, s := newStranger(t, 2, mvich.WithProtocol(mvich.RGET))
	const size = 20000
	b := make([]byte, size)
	var at vipl.AddressSegment
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return mvich.Send(w.Comm(), b, 1, 0)
		}
		s.grant(32)
		request, number := s.await(pktRequest)
		at = remoteOf(request)
		_, err := s.move(at, size/2, false)
		failIf(err != nil, "while the message is being sent: %w", err)
		s.send(packetOf(pktDone, 0, 0, 0, number, nil))
		return nil
	})
	copy(b, "secret")
	nstest.WantErr(t, "a read when the send was done", nstest.Err(s.move(at, 6, false)), vipl.ErrDescriptor)
}

// Nor can a peer write to the buffer after a receive by RPUT. Its right ends with its own message, not with that of
// another rank or the last of all.
func TestWriteAfterReceive(t *testing.T) {
	w, s := newStranger(t, 2)
	const size = 20000
	b := make([]byte, 2*size)
	var at [2]vipl.AddressSegment
	var number [2]uint32
	var receives [2]*mvich.Request
	for i := range receives {
		var err error
		// The second one, which is part of the first one's memory, is found in it.
		receives[i], err = w.Comm().Irecv(b[i*size:], 1, i)
		nstest.Must(t, err)
	}
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return nstest.Err(receives[0].Wait())
		}
		for i := range at {
			credits := uint16(32 * (1 - i))
			s.send(within(packetOf(pktRequest, credits, size*uint64(2-i), 1, 0, offerOf(offerRPUT)), ofMessages, uint32(i)))
			var ready []byte
			ready, number[i] = s.await(pktReady)
			at[i] = remoteOf(ready)
		}
		s.send(packetOf(pktFinish, 0, 0, 0, number[0], nil))
		return nil
	})
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return nstest.Err(receives[1].Wait())
		}
		_, err := s.move(at[1], size, true)
		failIf(err != nil, "while the second message is being received: %w", err)
		s.send(packetOf(pktFinish, 0, 0, 0, number[1], nil))
		return nil
	})
	clear(b)
	if _, err := s.move(at[1], 6, true); err == nil {
		// For this side the operation is done at the earliest when it is acknowledged.
		nstest.ErrorIf(t, bytes.Contains(b, []byte("w")), "it has written when the receive was done")
	}
	_, err := s.move(at[1], 6, true)
	nstest.ErrorIf(t, err == nil, "the connection works after a write to memory that it may not write")
	nstest.ErrorIf(t, bytes.Contains(b, []byte("w")), "it has written when the receive was done")
}

// SendrecvType whose send fails gives up its receive. The memory that the receive's elements were to come to is released
// once no more data can come, and the program's elements stay as they are.
func TestScratchOfGivenUp(t *testing.T) {
	const size = 20000
	column := mvich.Vector(size, 1, 2, mvich.Elem)
	piece := func(number uint32, at, n int) []byte {
		return packetOf(pktData, 0, uint64(at), 0, number, bytes.Repeat([]byte{'w'}, n))
	}
	for name, test := range map[string]struct {
		protocol mvich.Protocol
		end      func(s *stranger, number uint32)
		dies     bool
	}{
		"written": {mvich.RPUT, func(s *stranger, number uint32) { s.send(packetOf(pktFinish, 0, 0, 0, number, nil)) }, false},
		"pieces": {mvich.R3, func(s *stranger, number uint32) {
			for at := 0; at < size; at += size / 4 {
				s.send(piece(number, at, size/4))
			}
		}, false},
		"death": {mvich.R3, func(s *stranger, number uint32) {
			s.send(piece(number, 0, size/4))
			must(s.vi.Disconnect())
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 3)
			c := w.Comm()
			b := make([]byte, column.Extent())
			failed := make(chan struct{})
			each(t, 2, func(rank int) error {
				if rank == 1 {
					s.send(within(packetOf(pktRequest, 32, size, 1, 0, offerOf(uint32(test.protocol))), ofMessages, 1))
					_, number := s.await(pktReady)
					s.deathOf2(c)
					<-failed
					test.end(s, number)
					if !test.dies {
						s.empty(2)
					}
					return nil
				}
				get(c.Probe(1, 1)) // or the send may fail before the receive has its message
				_, err := mvich.SendrecvType(c, []byte("x"), mvich.Elem, 2, 0, b, column, 1, 1)
				must(wantLost("the send", err, 2))
				failIf(mvich.Pinned(w) == 0, "nothing is pinned while data may come")
				close(failed)
				if _, err = c.Recv(nil, 1, 2); test.dies { // behind the data
					err = wantLost("the connection", err, 1)
				}
				must(err)
				n := mvich.Pinned(w)
				failIf(n > 0, "%d registrations are still pinned", n)
				return nil
			})
			nstest.ErrorIf(t, bytes.Contains(b, []byte("w")), "the elements were written when the call was over")
		})
	}
}

// A rank violates the protocol while a message is being written to it. It gets nothing that the program writes to
// the buffer after the send has failed.
func TestWrittenAfterItFailed(t *testing.T) {
	const size = 4 << 20 // many windows
	wire, fabric := xdpnictest.NewWire(), kagenttest.NewFabric(kagenttest.Faults{})
	t.Cleanup(wire.Close)
	open := func(name string) *vipl.NIC { // frames are long, and sent by reference
		agent := fabric.Agent(name)
		agent.SetMTU(9000)
		return memorynic.Open(t, wire, agent, memorynic.Config{
			Queue:   xdpnictest.Config{ChunkSize: 4096, MultiBuffer: true, RxChunks: 512, TxChunks: 512},
			Silence: 5 * time.Second, // the last frame of the connection may be lost
		}).NIC
	}
	near, far := open("near"), open("far")
	w, launcher := besideStrangerOn(t, near, far, 2, mvich.WithProtocol(mvich.RPUT))
	s := callAsStranger(t, far, near, launcher)
	// Lost frames are resent from the buffer.
	wire.SetFaults(xdpnictest.Faults{Delay: 2 * time.Millisecond, Loss: 0.2})
	b, err := w.Alloc(size)
	noError(t, err)
	copy(b, bytes.Repeat([]byte{'x'}, size))
	target, err := far.RegisterMem(make([]byte, size), vipl.MemAttributes{Ptag: s.tag, EnableRDMAWrite: true})
	noError(t, err)
	each(t, 2, func(rank int) error {
		if rank == 0 {
			err := wantLost("send", w.Comm().Send(b, 1, 0), 1)
			copy(b, bytes.Repeat([]byte{'s'}, size))
			wire.SetFaults(xdpnictest.Faults{})
			failIf(near.Counters().ByReference == 0, "nothing was sent by reference")
			return err
		}
		var err error
		s.grant(32)
		_, number := s.await(pktRequest)
		before := far.Counters().Frames
		s.ready(size, 1, number, target.Remote(0))
		for far.Counters().Frames < before+20 { // it is being written
			far.Poll()
		}
		s.send(nil) // a packet that is too short
		for err == nil {
			_, err = s.recv()
		}
		n := bytes.Count(target.Bytes(), []byte{'s'})
		failIf(n > 0, "%d bytes were written that the program wrote when the send had failed", n)
		failIf(!bytes.Contains(target.Bytes(), []byte{'x'}), "nothing was written")
		return nil
	})
}
