package mvich_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/mvich"
	"viaxdp/vipl"
)

// stranger is a hostile rank: a bare VI with the tokens of the job, which it has from the launcher like any rank.
type stranger struct {
	t      *testing.T
	vi     *vipl.VI
	tag    *vipl.Ptag
	region *vipl.Region
	sent   int // in all
	done   int // that are taken off the send queue
}

// The layout of a stranger's region: buffers for sending, buffers for receiving, then memory for RDMA.
const (
	strangerBuffer = 32 << 10
	strangerSends  = 20
	strangerRecvs  = 40
	strangerRDMA   = (strangerSends + strangerRecvs) * strangerBuffer
)

// strangersToken is the token that rank 1 has published.
const strangersToken = "stranger"

// besideStranger makes a job on one NIC: a proper rank 0, and other ranks that exist only as published records.
func besideStranger(t *testing.T, ranks int, opts ...mvich.Option) (nic *vipl.NIC, w *mvich.World, theirs mvich.Launcher) {
	t.Helper()
	nic = newJob(t, 1, jobConfig{}).hosts[0].NIC
	w, theirs = besideStrangerOn(t, nic, nic, ranks, opts...)
	return nic, w, theirs
}

// besideStrangerOn is besideStranger with rank 0 on a NIC, and the others on far.
func besideStrangerOn(t *testing.T, nic, far *vipl.NIC, ranks int, opts ...mvich.Option) (w *mvich.World, theirs mvich.Launcher) {
	t.Helper()
	launchers := mvich.Local(ranks)
	terms := make(chan string, 1)
	each(t, ranks, func(rank int) (err error) {
		if rank == 0 {
			w, err = mvich.Init(nic, capture{launchers[0], terms}, append(opts, mvich.WithConnectTimeout(testTimeout))...)
			return err
		}
		// It publishes the record of the first one, except for the address and the token.
		said := <-terms
		terms <- said
		fields := strings.Split(said, ",")
		fields[0], fields[1] = far.Query().Address.String(), strangersToken
		if rank > 1 {
			fields[1] = "nobody"
		}
		return errors.Join(launchers[rank].Put(fmt.Sprint("mvich-", rank), strings.Join(fields, ",")), launchers[rank].Fence())
	})
	t.Cleanup(func() { w.Finalize() })
	return w, launchers[1]
}

// newStranger makes a job of a proper rank 0 and a stranger as rank 1, which calls it. Other ranks do not exist.
func newStranger(t *testing.T, ranks int, opts ...mvich.Option) (*mvich.World, *stranger) {
	t.Helper()
	nic, w, launcher := besideStranger(t, ranks, opts...)
	return w, callAsStranger(t, nic, nic, launcher)
}

// callAsStranger calls rank 0 from a NIC; at is rank 0's.
func callAsStranger(t *testing.T, nic, at *vipl.NIC, launcher mvich.Launcher) *stranger {
	t.Helper()
	record, err := launcher.Get("mvich-0")
	noError(t, err)
	token := strings.Split(record, ",")[1]

	tag, err := nic.CreatePtag()
	noError(t, err)
	s := &stranger{t: t, tag: tag}
	s.region, err = nic.AllocMem(64*strangerBuffer, vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true})
	nstest.Must(t, err)
	s.vi, err = nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag, EnableRDMARead: true, EnableRDMAWrite: true}, nil, nil)
	nstest.Must(t, err)
	for i := range strangerRecvs {
		d, err := s.region.Descriptor((i+strangerSends)*strangerBuffer, 1)
		noError(t, err)
		d.SetSegments(s.region.Segment((i+strangerSends)*strangerBuffer+64, strangerBuffer-64))
		noError(t, s.vi.PostRecv(d, s.region.Handle()))
	}
	for range 500 {
		_, err = s.vi.ConnectRequest(vipl.NetAddress{Discriminator: []byte(strangersToken)},
			vipl.NetAddress{Host: at.Query().Address, Discriminator: []byte(token)}, testTimeout)
		if err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	noError(t, err)
	t.Cleanup(func() { s.vi.Disconnect() }) // or the other one takes leave of it for long
	return s
}

// capture also hands on what a rank publishes.
type capture struct {
	mvich.Launcher
	value chan string
}

func (c capture) Put(key, value string) error {
	c.value <- value
	return c.Launcher.Put(key, value)
}

// send sends raw bytes.
func (s *stranger) send(b []byte) {
	s.t.Helper()
	for ; s.sent-s.done >= strangerSends; s.done++ {
		if _, err := s.vi.SendWait(testTimeout); err != nil {
			return // it is taken for dead
		}
	}
	at := s.sent % strangerSends * strangerBuffer
	s.sent++
	d, err := s.region.Descriptor(at, 1)
	noError(s.t, err)
	copy(s.region.Bytes()[at+64:], b)
	d.SetSegments(s.region.Segment(at+64, len(b)))
	if err := s.vi.PostSend(d, s.region.Handle()); err != nil && !errors.Is(err, vipl.ErrInvalidState) {
		s.t.Fatal(err)
	}
}

// recv receives the next packet.
func (s *stranger) recv() ([]byte, error) {
	d, err := s.vi.RecvWait(testTimeout)
	if err != nil {
		return nil, err
	}
	place := d.Segment(0)
	return s.region.Bytes()[int(place.Data-s.region.Addr()):][:d.Length], nil
}

// await receives packets until one is of a kind, and returns it and the number of its request.
func (s *stranger) await(kinds ...byte) (b []byte, number uint32) {
	for b = get(s.recv()); !slices.Contains(kinds, b[0]); {
		b = get(s.recv())
	}
	return b, binary.LittleEndian.Uint32(b[24:])
}

// grant gives the other side credits.
func (s *stranger) grant(credits uint16) { s.send(packetOf(pktNoop, credits, 0, 0, 0, nil)) }

// empty sends a message without data.
func (s *stranger) empty(tag uint32) {
	s.send(within(packetOf(pktEager, 0, 0, 0, 0, nil), ofMessages, tag))
}

// deathOf2 notifies the other side of the death of rank 2, and waits until it has taken effect.
func (s *stranger) deathOf2(c *mvich.Comm) {
	s.send(within(packetOf(pktDead, 0, 0, 0, 0, nil), 0, 2))
	if _, err := c.Probe(2, 0); err == nil {
		must(errors.New("a message of a rank that is not there"))
	}
}

// data receives size bytes in pieces, and checks that they contain no x, which the program writes once the buffer is
// its own again.
func (s *stranger) data(size int) error {
	for left := size; left > 0; {
		b, _ := s.await(pktData, pktFinish)
		failIf(b[0] == pktFinish, "it was written: %q", s.region.Bytes()[strangerRDMA:][:4])
		left -= len(b) - 32
		failIf(bytes.IndexByte(b[32:], 'x') >= 0, "a piece was sent from the buffer when the operation was over")
	}
	return nil
}

// Kinds and fields of packets, as package mvich's doc comment lists them.
const (
	pktEager, pktRequest, pktReady, pktData, pktFinish, pktDone, pktNoop = 1, 2, 3, 4, 5, 6, 7
	pktDead                                                              = 8
)

func packetOf(kind byte, credits uint16, size uint64, from, to uint32, behind []byte) []byte {
	b := make([]byte, 32)
	b[0] = kind
	binary.LittleEndian.PutUint16(b[2:], credits)
	if kind == pktEager || kind == pktData {
		binary.LittleEndian.PutUint32(b[4:], uint32(len(behind)))
	}
	binary.LittleEndian.PutUint64(b[16:], size)
	binary.LittleEndian.PutUint32(b[24:], from)
	binary.LittleEndian.PutUint32(b[28:], to)
	return append(b, behind...)
}

// within names the context and the tag of a packet; of pktDead the tag is the rank.
func within(b []byte, context, tag uint32) []byte {
	binary.LittleEndian.PutUint32(b[8:], context)
	binary.LittleEndian.PutUint32(b[12:], tag)
	return b
}

func contextOf(b []byte) uint32 { return binary.LittleEndian.Uint32(b[8:]) }

func offerOf(protocol uint32) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint64(b, 0xdeadbeef000)
	binary.LittleEndian.PutUint32(b[8:], 12345)
	binary.LittleEndian.PutUint32(b[12:], protocol)
	return b
}

// ready makes a receive with the number from ready to be written to memory; number is the send's.
func (s *stranger) ready(size, from, number uint32, at vipl.AddressSegment) {
	b := packetOf(pktReady, 0, uint64(size), from, number, offerOf(offerRPUT))
	binary.LittleEndian.PutUint64(b[32:], at.Data)
	binary.LittleEndian.PutUint32(b[40:], uint32(at.Handle))
	s.send(b)
}

// For any packet of a peer, the worst outcome is that the peer is taken for dead; the other ranks go on.
func TestHostilePeer(t *testing.T) {
	for name, packets := range map[string][][]byte{
		"nothing":                 {{}},
		"too short":               {make([]byte, 31)},
		"no such kind":            {packetOf(77, 0, 0, 0, 0, nil)},
		"length that lies":        {packetOf(pktEager, 0, 5, 0, 0, nil)},
		"bytes behind":            {packetOf(pktNoop, 0, 0, 0, 0, []byte("more"))},
		"size that lies":          {packetOf(pktEager, 0, 9, 0, 0, []byte("abc"))},
		"credits that lie":        {packetOf(pktNoop, mvich.DefaultCredits+1, 0, 0, 0, nil)},
		"credits that grow":       {packetOf(pktNoop, mvich.DefaultCredits, 0, 0, 0, nil), packetOf(pktNoop, mvich.DefaultCredits, 0, 0, 0, nil)},
		"ready for nothing":       {packetOf(pktReady, 0, 10, 1, 99, offerOf(4))},
		"data for nothing":        {packetOf(pktData, 0, 0, 0, 99, []byte("abc"))},
		"finish of nothing":       {packetOf(pktFinish, 0, 0, 0, 99, nil)},
		"done with nothing":       {packetOf(pktDone, 0, 0, 0, 99, nil)},
		"no such protocol":        {packetOf(pktRequest, 0, 10, 1, 0, offerOf(9))},
		"eager as an offer":       {packetOf(pktRequest, 0, 10, 1, 0, offerOf(1))},
		"huge":                    {packetOf(pktRequest, 0, 1<<60, 1, 0, offerOf(2))},
		"tag below all":           {within(packetOf(pktEager, 0, 0, 0, 0, nil), ofMessages, 1<<32-1)},
		"tag above all":           {within(packetOf(pktRequest, 0, 10, 1, 0, offerOf(2)), ofMessages, mvich.MaxTag+1)},
		"memory that is not":      {packetOf(pktRequest, 32, 10, 1, 0, offerOf(3))},
		"data before its piece":   {packetOf(pktRequest, 32, 10, 1, 0, offerOf(2)), packetOf(pktData, 0, 5, 0, 1, []byte("abc"))},
		"more data than said":     {packetOf(pktRequest, 32, 10, 1, 0, offerOf(2)), packetOf(pktData, 0, 0, 0, 1, make([]byte, 11))},
		"finish of data":          {packetOf(pktRequest, 32, 10, 1, 0, offerOf(2)), packetOf(pktFinish, 0, 0, 0, 1, nil)},
		"done by the wrong side":  {packetOf(pktRequest, 32, 10, 1, 0, offerOf(2)), packetOf(pktDone, 0, 0, 0, 1, nil)},
		"ready by the wrong side": {packetOf(pktRequest, 32, 10, 1, 0, offerOf(2)), packetOf(pktReady, 0, 1, 1, 1, offerOf(2))},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 2)
			c := w.Comm()
			r, err := c.Irecv(make([]byte, 100), 1, 0)
			noError(t, err)
			for _, p := range packets {
				s.send(p)
			}
			each(t, 1, func(int) error {
				return wantLost("receive", nstest.Err(r.Wait()), 1)
			})
		})
	}
}

// An unfinished rendezvous and endless envelopes do not keep a rank from ending.
func TestPeerThatStops(t *testing.T) {
	w, s := newStranger(t, 2)
	c := w.Comm()
	r, err := c.Irecv(make([]byte, 100), 1, 0)
	noError(t, err)
	s.send(packetOf(pktRequest, 32, 10, 1, 0, offerOf(2)))
	for range 10 {
		s.send(packetOf(pktRequest, 0, 10, 1, 0, offerOf(4)))
	}
	s.send(packetOf(pktDead, 0, 0, 0, 0, nil)) // rank 0, which is this one, and lives
	for range 100 {
		if _, done, err := r.Test(); done {
			t.Fatalf("it is complete: %v", err)
		}
		time.Sleep(100 * time.Microsecond)
	}
	s.vi.Disconnect()
	each(t, 1, func(int) error {
		return wantLost("receive", nstest.Err(r.Wait()), 1)
	})
}

// A rank that ends while it calls one that does not answer does not wait for the answer.
func TestEndWhileCalling(t *testing.T) {
	nic, w, _ := besideStranger(t, 2)
	silent, err := nic.Listen(vipl.NetAddress{Discriminator: []byte(strangersToken)})
	noError(t, err)
	defer silent.Close()
	noError(t, nstest.Err(w.Comm().Isend([]byte{1}, 1, 0)))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	noError(t, nstest.Err(silent.Wait(ctx)))
	meter := schedlat.Start()
	start := meter.Mark()
	err = mvich.Shut(w)
	meter.Close()
	noError(t, err)
	nstest.ErrorIf(t, start.Over(mvich.CallTurn/2), "it took %v", time.Since(start.At))
}

const (
	ofMessages    = 0 // contexts of the world
	ofCollectives = 1
)

// After a death has ended a collective operation, late data for it does not reach the program's buffer.
func TestLateData(t *testing.T) {
	const size, piece = 15000, 5000
	w, s := newStranger(t, 3)
	c := w.Comm()
	ended := make(chan struct{})
	each(t, 2, func(rank int) error {
		if rank == 0 {
			b := make([]byte, size)
			err := wantLost("bcast", c.Bcast(b, 1), 2)
			copy(b, bytes.Repeat([]byte{'x'}, size))
			close(ended)
			must(err)
			get(c.Recv(nil, 1, 0)) // all pieces came before it
			failIf(bytes.Count(b, []byte{'x'}) < size, "the buffer was written to when the operation was over")
			return nil
		}
		s.send(within(packetOf(pktRequest, 32, size, 1, 0, offerOf(2)), ofCollectives, 1))
		_, number := s.await(pktReady)
		s.send(packetOf(pktData, 0, 0, 0, number, make([]byte, piece)))
		s.send(within(packetOf(pktDead, 0, 0, 0, 0, nil), 0, 2))
		<-ended
		for at := piece; at < size; at += piece {
			s.send(packetOf(pktData, 0, uint64(at), 0, number, make([]byte, piece)))
		}
		s.empty(0)
		return nil
	})
}

// Nor is data sent from the buffer: what has not begun is not sent, pieces go on without the buffer, and nothing is
// written for a receiver that becomes ready after the operation's end.
func TestLateSend(t *testing.T) {
	const size, asMuchAsTheReserve = 60000, 9
	for name, test := range map[string]struct {
		protocol mvich.Protocol
		size     int
		peer     func(c *mvich.Comm, s *stranger) error
	}{
		"not begun": {mvich.Auto, 100, func(c *mvich.Comm, s *stranger) error {
			s.deathOf2(c)
			s.grant(32)
			for {
				if b := get(s.recv()); contextOf(b) == ofCollectives {
					return fmt.Errorf("% x", b)
				} else if b[0] == pktEager {
					return nil
				}
			}
		}},
		"pieces": {mvich.R3, size, func(c *mvich.Comm, s *stranger) error {
			s.grant(asMuchAsTheReserve)
			_, number := s.await(pktRequest)
			s.send(packetOf(pktReady, 0, size, 1, number, offerOf(2)))
			s.deathOf2(c)
			s.grant(32)
			return s.data(size)
		}},
		"written": {mvich.RPUT, size, func(c *mvich.Comm, s *stranger) error {
			s.grant(32)
			_, number := s.await(pktRequest)
			s.deathOf2(c)
			s.ready(size, 1, number, s.region.Remote(strangerRDMA))
			return s.data(size)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 3, mvich.WithProtocol(test.protocol))
			c := w.Comm()
			each(t, 2, func(rank int) error {
				if rank == 0 {
					b := bytes.Repeat([]byte{'x'}, test.size)
					must(wantLost("scan", mvich.Scan(c, b, b, mvich.Sum), 2))
					must(c.Send(nil, 1, 0))
					return nstest.Err(c.Recv(nil, 1, 9)) // what is under way goes on meanwhile
				}
				defer s.empty(9)
				return test.peer(c, s)
			})
		})
	}
}

// The RDMA write that ends a message names the receive that is being written in its immediate data, and uses a credit. It
// completes a posted receive without a packet: its length may exceed a vbuf, whose content is an old packet.
func TestImmediateWrite(t *testing.T) {
	const size, credits = 20000, 8
	for name, test := range map[string]struct {
		empties int                                    // messages that take credits before
		ends    func(written, packets uint32) []uint32 // of the receives that are being written, and filled by packets
		arrives bool                                   // the written one
		lost    bool
	}{
		"the receive's number": {ends: func(written, _ uint32) []uint32 { return []uint32{written} }, arrives: true},
		"another number":       {ends: func(written, _ uint32) []uint32 { return []uint32{written + 100} }, lost: true},
		"one that is over":     {ends: func(written, _ uint32) []uint32 { return []uint32{written, written} }, arrives: true, lost: true},
		"one of packets":       {ends: func(_, packets uint32) []uint32 { return []uint32{packets} }, lost: true},
		"without a credit":     {empties: credits, ends: func(written, _ uint32) []uint32 { return []uint32{written} }, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 2, mvich.WithCredits(credits))
			b := make([]byte, size)
			written := get(w.Comm().Irecv(b, 1, 0))
			packets := get(w.Comm().Irecv(make([]byte, size), 1, 1))
			taken := make(chan struct{})
			each(t, 2, func(rank int) error {
				if rank == 0 {
					for range test.empties { // their receives are posted again, and it has no credit to say so
						get(w.Comm().Recv(nil, 1, 9))
					}
					close(taken)
					_, err := written.Wait()
					if test.arrives {
						must(err)
						nstest.ErrorIf(t, bytes.ContainsFunc(b, func(r rune) bool { return r != 'w' }), "what has arrived was not written")
						_, err = w.Comm().Recv(nil, 1, 2)
					}
					if test.lost {
						must(wantLost("receive", nstest.Err(packets.Wait()), 1))
						return wantLost("receive", err, 1)
					}
					return err
				}
				s.send(within(packetOf(pktRequest, 1, size, 1, 0, offerOf(uint32(mvich.R3))), ofMessages, 1))
				_, filled := s.await(pktReady)
				s.send(packetOf(pktRequest, 1, size, 1, 0, offerOf(offerRPUT)))
				ready, number := s.await(pktReady)
				for range test.empties {
					s.empty(9)
				}
				<-taken
				for _, ended := range test.ends(number, filled) {
					s.writeLast(remoteOf(ready), size, ended)
				}
				if !test.lost {
					s.empty(2)
				}
				return nil
			})
		})
	}
}

// An answer that no message asked for ends the connection, and takes no byte of the buffer.
func TestAnswersNobodyAskedFor(t *testing.T) {
	const size = 20000
	ready := func(protocol mvich.Protocol) func(number uint32) []byte {
		return func(number uint32) []byte { return packetOf(pktReady, 0, 8, 1, number, offerOf(uint32(protocol))) }
	}
	done := func(number uint32) []byte { return packetOf(pktDone, 0, 0, 0, number, nil) }
	for name, test := range map[string]struct {
		protocol mvich.Protocol
		size     int
		answer   func(number uint32) []byte
	}{
		"ready for what has gone":        {mvich.Auto, 8, ready(mvich.R3)},
		"write for what has gone":        {mvich.Auto, 8, ready(mvich.RPUT)},
		"write for data":                 {mvich.R3, size, ready(mvich.RPUT)},
		"write for a read":               {mvich.RGET, size, ready(mvich.RPUT)},
		"done before the data":           {mvich.R3, size, done},
		"done before the write":          {mvich.RPUT, size, done},
		"ready for another rank's":       {mvich.RPUT, size, func(number uint32) []byte { return ready(mvich.R3)(number + 1) }},
		"ready for more than there is":   {mvich.R3, size, func(n uint32) []byte { return packetOf(pktReady, 0, size+1, 1, n, offerOf(2)) }},
		"ready of no request of its own": {mvich.R3, size, func(n uint32) []byte { return packetOf(pktReady, 0, 8, 0, n, offerOf(2)) }},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 2, mvich.WithProtocol(test.protocol))
			each(t, 2, func(rank int) error {
				if rank == 0 {
					return wantLost("send", w.Comm().Ssend(make([]byte, test.size), 1, 0), 1)
				}
				s.send(packetOf(pktNoop, 32, 0, 0, 0, nil))
				for {
					b := get(s.recv())
					if b[0] == pktEager || b[0] == pktRequest {
						s.send(test.answer(binary.LittleEndian.Uint32(b[24:])))
						return nil
					}
				}
			})
		})
	}
}

// A second answer to a message whose data is under way ends the connection.
func TestReadyTwice(t *testing.T) {
	const size, asMuchAsTheReserve = 60000, 9
	w, s := newStranger(t, 2, mvich.WithProtocol(mvich.R3))
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return wantLost("send", w.Comm().Ssend(make([]byte, size), 1, 0), 1)
		}
		s.grant(asMuchAsTheReserve)
		_, number := s.await(pktRequest)
		for range 2 {
			s.send(packetOf(pktReady, 0, size, 1, number, offerOf(2)))
		}
		s.grant(32)
		return nil
	})
}

// A rank that makes this one answer its messages, without giving credits for the answers, does not fill this one's
// memory.
func TestAnswersWithoutEnd(t *testing.T) {
	const credits, most, many = 8, 20, 100
	w, s := newStranger(t, 2, mvich.WithCredits(credits))
	mvich.BoundEnvelopes(w, most)
	each(t, 2, func(rank int) error {
		if rank == 0 {
			for range many {
				if _, err := w.Comm().Recv(nil, 1, 0); err != nil {
					return wantLost("receive", err, 1)
				}
			}
			return errors.New("it takes answers without end")
		}
		for left, sent := credits, 0; sent < many; sent, left = sent+1, left-1 {
			p := packetOf(pktEager, 0, 0, 1, 0, nil)
			p[1] = 1 // it waits for done
			if left == 1 {
				p[2] = 1 // a credit for one of them
			}
			s.send(within(p, ofMessages, 0))
			for left == 1 {
				b, err := s.recv()
				if err != nil {
					return nil // it is taken for dead
				}
				left += int(binary.LittleEndian.Uint16(b[2:]))
			}
		}
		return nil
	})
}

// Only a communicator's first rank may give its context, and only once. Otherwise messages of two communicators would
// mix.
func TestContextsThatLie(t *testing.T) {
	for name, contexts := range map[string][]uint32{
		"the world's own collectives": {1}, "another rank's": {2}, "in use": {4, 4}, "its own": {4, 8},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newStranger(t, 2)
			each(t, 2, func(rank int) error {
				if rank == 1 {
					for turn, context := range contexts {
						b := binary.LittleEndian.AppendUint32(nil, context)
						s.send(within(packetOf(pktEager, uint16(8*(1-turn)), 4, 0, 0, b), 41, uint32(turn+1)))
					}
					return nil
				}
				c := w.Comm().Under(1, 40)
				_, err := c.Dup()
				if len(contexts) > 1 && err == nil {
					_, err = c.Dup()
				}
				if name == "its own" {
					return err
				}
				return wantLost("dup", err, 1)
			})
		})
	}
}
