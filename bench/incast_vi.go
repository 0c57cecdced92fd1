package bench

import (
	"errors"
	"fmt"
	"time"

	"viaxdp/vipl"
)

// incastWords is how many words of one side the other has room for: the receiver says with
// one that it has posted incastCredit receives again.
const (
	incastWords  = 8
	incastCredit = incastDepth / 2
)

// incastEnd is one end of a stream over a VI of Reliable Delivery. Messages go one way,
// words, which have no data, the other.
type incastEnd struct {
	vi       *vipl.VI
	bytes    int
	data     *vipl.Region // a slot for each of incastDepth messages
	messages ring
	words    ring
	gone     bool
}

func newIncastEnd(nic *vipl.Nic, cq *vipl.CQ, bytes, messages int) (*incastEnd, error) {
	tag, err := nic.CreatePtag()
	if err != nil {
		return nil, err
	}
	e := &incastEnd{bytes: bytes}
	attributes := vipl.MemAttributes{Ptag: tag}
	if e.data, err = nic.AllocMem(incastDepth*bytes, attributes); err != nil {
		return nil, err
	}
	const step = (vipl.ControlSegmentSize + vipl.DataSegmentSize + vipl.DescriptorAlignment - 1) &^ (vipl.DescriptorAlignment - 1)
	region, err := nic.AllocMem((messages+incastWords)*step, attributes)
	if err != nil {
		return nil, err
	}
	for i := range messages + incastWords {
		d, err := region.Descriptor(i*step, 1)
		if err != nil {
			return nil, err
		}
		r := &e.messages
		if i >= messages {
			r = &e.words
		}
		r.handle, r.descs = region.Handle(), append(r.descs, d)
	}
	e.vi, err = nic.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: bytes, Ptag: tag}, nil, cq)
	return e, err
}

// slot is where the message of a number lies.
func (e *incastEnd) slot(number int) []byte {
	return e.data.Bytes()[number%incastDepth*e.bytes:][:e.bytes]
}

// post posts the message of the next number, or room for it.
func (e *incastEnd) post(post postOne) error {
	d := e.messages.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(e.data.Segment(e.messages.posted%incastDepth*e.bytes, e.bytes))
	e.messages.staged++
	return e.messages.push(post, nil)
}

// postWord posts a word, or room for one.
func (e *incastEnd) postWord(post postOne) error {
	d := e.words.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments()
	e.words.staged++
	return e.words.push(post, nil)
}

// fail adds to an error what the VI knows of its end.
func (e *incastEnd) fail(doing string, err error) error {
	if st, qerr := e.vi.Query(); qerr == nil && st.Cause != nil {
		err = fmt.Errorf("%w; the VI is in state %v: %w", err, st.State, st.Cause)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func incastAddress(in incastInput, number int) vipl.NetAddress {
	return vipl.NetAddress{Host: in.Receiver, Discriminator: fmt.Appendf(nil, "incast %d", number)}
}

// incastVI is a sender's stream.
type incastVI struct {
	*incastEnd
	nic      *vipl.Nic
	credited int
	watch    watchdog
}

func openIncastVI(j *job, in incastInput) (_ incastSender, err error) {
	s := &incastVI{credited: incastDepth, watch: watchdog{stop: j.stop, most: incastPatience}}
	if s.nic, err = openNic(j.params, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	// More than may be under way: one whose message is taken may not be complete.
	if s.incastEnd, err = newIncastEnd(s.nic, nil, in.Bytes, 2*incastDepth); err != nil {
		return nil, err
	}
	for i := range incastDepth {
		copy(s.slot(i), content(i, 0, in.Bytes))
	}
	for range incastWords {
		if err := s.postWord(s.vi.PostRecv); err != nil {
			return nil, err
		}
	}
	local, to := vipl.NetAddress{Host: j.params.Local}, incastAddress(in, in.Number)
	for end := time.Now().Add(incastPatience); ; time.Sleep(connectPause) { // it takes one after the other
		if _, err = s.vi.ConnectRequest(local, to, patience); !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) || j.stop.Load() {
			return s, err
		}
	}
}

func (s *incastVI) send(number uint64) error {
	for s.messages.posted >= s.credited {
		_, err := s.vi.RecvWait(maxSleep)
		if err != nil {
			if err = s.again("wait for room", err); err != nil {
				return err
			}
			continue
		}
		s.watch.progress()
		s.words.done++
		s.credited += incastCredit
		if err := s.postWord(s.vi.PostRecv); err != nil {
			return s.fail("receive", err)
		}
	}
	if err := s.sent(len(s.messages.descs) - 1); err != nil {
		return err
	}
	if err := s.post(s.vi.PostSend); err != nil {
		return s.fail("send", err)
	}
	return nil
}

// sent takes completed sends off, and waits where more than most are not complete.
func (s *incastVI) sent(most int) error {
	for s.messages.out() > 0 {
		var err error
		if s.messages.out() > most {
			_, err = s.vi.SendWait(maxSleep)
		} else if _, err = s.vi.SendDone(); err == vipl.ErrNotDone {
			return nil
		}
		if err != nil {
			if err = s.again("send", err); err != nil {
				return err
			}
			continue
		}
		s.watch.progress()
		s.messages.done++
	}
	return nil
}

// again returns nil if a wait is to go on.
func (s *incastVI) again(doing string, err error) error {
	if errors.Is(err, vipl.ErrTimeout) {
		err = s.watch.blocked()
	}
	if err != nil {
		return s.fail(doing, err)
	}
	return nil
}

func (s *incastVI) finish() (frames, resent, dropped uint64, err error) {
	if err := s.sent(0); err != nil {
		return 0, 0, 0, err
	}
	if err := s.vi.Disconnect(); err != nil {
		return 0, 0, 0, err
	}
	st := s.nic.Status()
	return st.Socket["tx_frames"], st.Counters.Resent, st.Socket["tx_lost_busy"] + st.Socket["tx_invalid_descs"], nil
}

func (s *incastVI) close() error { return s.nic.Close() }

// incastVIs are the streams of all senders as the receiver has them, on one completion queue.
type incastVIs struct {
	in     incastInput
	nic    *vipl.Nic
	cq     *vipl.CQ
	ends   []*incastEnd
	of     map[*vipl.VI]int
	last   *incastEnd // whose message next has returned, and is to be posted again
	ending bool
	watch  watchdog

	before map[string]uint64 // of the program
}

func takeIncastVI(j *job, in incastInput) (_ incastReceiver, err error) {
	r := &incastVIs{in: in, of: map[*vipl.VI]int{}, watch: watchdog{stop: j.stop, most: incastPatience}}
	if r.nic, err = openNic(j.params, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.cq, err = r.nic.CreateCQ(in.Senders * incastDepth); err != nil {
		return nil, err
	}
	for i := range in.Senders {
		e, err := newIncastEnd(r.nic, r.cq, in.Bytes, incastDepth)
		if err != nil {
			return nil, err
		}
		for range incastDepth {
			if err := e.post(e.vi.PostRecv); err != nil {
				return nil, err
			}
		}
		r.ends = append(r.ends, e)
		r.of[e.vi] = i
	}
	r.before = r.nic.Status().Demux
	return r, nil
}

func (r *incastVIs) connect() error {
	for i, e := range r.ends {
		c, err := r.nic.ConnectWait(incastAddress(r.in, i), incastPatience)
		if err == nil {
			err = c.Accept(e.vi)
		}
		if err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

func (r *incastVIs) next() (int, []byte, error) {
	if e := r.last; e != nil {
		r.last = nil
		if err := r.again(e); err != nil {
			return -1, nil, err
		}
	}
	vi, _, err := r.cq.Wait(maxSleep)
	if errors.Is(err, vipl.ErrTimeout) {
		return -1, nil, r.watch.blocked()
	}
	if err != nil {
		return -1, nil, err
	}
	r.watch.progress()
	i := r.of[vi]
	e := r.ends[i]
	d, err := vi.RecvDone()
	switch {
	case r.ending && d != nil && d.Status()&vipl.StatusFlushed != 0: // by the end of the connection
		e.gone = true
		return -1, nil, nil
	case err != nil:
		return -1, nil, e.fail(fmt.Sprintf("receive from sender %d", i), err)
	case int(d.Length) != r.in.Bytes:
		return -1, nil, fmt.Errorf("a message of %d bytes came from sender %d, not of %d", d.Length, i, r.in.Bytes)
	}
	number := e.messages.done
	e.messages.done++
	r.last = e
	return i, e.slot(number), nil
}

// again posts a receive in the place of the one that was taken, and says so now and then.
func (r *incastVIs) again(e *incastEnd) error {
	if e.gone {
		return nil
	}
	err := e.post(e.vi.PostRecv)
	if err == nil && (e.messages.posted-incastDepth)%incastCredit == 0 {
		if err = r.room(e); err == nil {
			err = e.postWord(e.vi.PostSend)
		}
	}
	if err != nil && r.ending { // the sender does not wait for it any more
		return nil
	}
	if err != nil {
		return e.fail("answer a sender", err)
	}
	return nil
}

// room takes completed words off, so that there is room for one more.
func (r *incastVIs) room(e *incastEnd) error {
	for e.words.out() > 0 {
		_, err := e.vi.SendDone()
		if err == vipl.ErrNotDone {
			if e.words.out() < len(e.words.descs) {
				return nil
			}
			if _, err = e.vi.SendWait(maxSleep); errors.Is(err, vipl.ErrTimeout) {
				if err = r.watch.blocked(); err == nil {
					continue
				}
			}
		}
		if err != nil {
			return err
		}
		e.words.done++
	}
	return nil
}

func (r *incastVIs) end() { r.ending = true }

// incastQuiet is how long frames that were sent may be on their way.
const incastQuiet = 5 * time.Second

func (r *incastVIs) count(sent uint64) (seen, dropped, unnamed uint64) {
	for end := time.Now().Add(incastQuiet); ; time.Sleep(time.Millisecond) {
		r.nic.Poll()
		s := r.nic.Status()
		seen, dropped = 0, 0
		for name, n := range s.Demux {
			n -= r.before[name]
			switch name {
			case "control":
				continue
			case "redirected":
			default:
				dropped += n
			}
			seen += n
		}
		socket := s.Socket["rx_dropped"] + s.Socket["rx_ring_full"] + s.Socket["rx_too_many_segs"] + s.Socket["rx_bad_entries"]
		redirected, named := s.Demux["redirected"]-r.before["redirected"], s.Socket["rx_frames"]+socket
		unnamed = max(redirected, named) - named
		if seen >= sent && unnamed == 0 || time.Now().After(end) {
			return seen, dropped + socket, unnamed
		}
	}
}

func (r *incastVIs) facts() Facts { return factsOf(r.nic) }

func (r *incastVIs) close() error { return r.nic.Close() }
