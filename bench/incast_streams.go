package bench

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/vipl"
)

// incastWords is how many words of the receiver a sender has room for. Words have no data,
// and an immediate number that says what they are.
const (
	incastWords  = 8
	incastRoom   = 1 // there are incastCredit receives more
	incastOver   = 2 // no message shall follow
	incastAll    = 3 // all messages have come
	incastCredit = incastDepth / 2
)

// incastEnd is one end of a stream over a VI of Reliable Delivery. Messages go one way,
// words the other; behind the last message comes their number, without data.
type incastEnd struct {
	vi       *vipl.VI
	bytes    int
	data     *vipl.Region // a slot for each of incastDepth messages
	messages ring
	words    ring
	gone     bool
}

func newIncastEnd(nic *vipl.NIC, cq *vipl.CQ, bytes, messages int) (*incastEnd, error) {
	tag, err := nic.CreatePtag()
	if err != nil {
		return nil, err
	}
	e := &incastEnd{bytes: bytes}
	if e.data, err = nic.AllocMem(incastDepth*bytes, vipl.MemAttributes{Ptag: tag}); err != nil {
		return nil, err
	}
	if e.messages, err = newRing(nic, tag, messages); err != nil {
		return nil, err
	}
	if e.words, err = newRing(nic, tag, incastWords); err != nil {
		return nil, err
	}
	e.vi, err = nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: bytes, Ptag: tag}, nil, cq)
	return e, err
}

// slot is where the message of a number lies.
func (e *incastEnd) slot(number int) []byte {
	return e.data.Bytes()[number%incastDepth*e.bytes:][:e.bytes]
}

// post posts the message of the next number, or room for it.
func (e *incastEnd) post(post postOne) error {
	return e.messages.add(post, nil, e.data.Segment(e.messages.posted%incastDepth*e.bytes, e.bytes))
}

func incastAddress(in incastInput, number int) vipl.NetAddress {
	return vipl.NetAddress{Host: in.Receiver, Discriminator: fmt.Appendf(nil, "incast %d", number)}
}

// incastVI is a sender's stream.
type incastVI struct {
	*incastEnd
	nic      *vipl.NIC
	credited int
	heard    uint32 // the last word but those of room
	watch    watchdog
}

func openIncastVI(j *job, in incastInput) (_ incastSender, err error) {
	s := &incastVI{credited: incastDepth, watch: watchdog{stop: j.stop, most: incastLimit}}
	if s.nic, err = openNIC(j.params, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
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
		if err := s.words.add(s.vi.PostRecv, nil); err != nil {
			return nil, err
		}
	}
	// The receiver takes one after the other.
	return s, requestConnection(s.vi, vipl.NetAddress{Host: j.params.Local}, incastAddress(in, in.Number), incastLimit, j.stop)
}

// listen takes a word of the receiver; without waiting there may be none.
func (s *incastVI) listen(wait bool) error {
	var d *vipl.Descriptor
	var err error
	if wait {
		d, err = s.vi.RecvWait(maxSleep)
	} else if d, err = s.vi.RecvDone(); err == vipl.ErrNotDone {
		return nil
	}
	if err != nil {
		return s.again("wait for the receiver", err)
	}
	s.watch.progress()
	s.words.done++
	switch w, _ := d.Immediate(); w {
	case incastRoom:
		s.credited += incastCredit
	default:
		s.heard = w
	}
	return s.words.add(s.vi.PostRecv, nil)
}

// room waits until the receiver has room for one more message.
func (s *incastVI) room() error {
	err := s.listen(false)
	for err == nil && s.messages.posted >= s.credited {
		err = s.listen(true)
	}
	if err == nil {
		err = s.sent(len(s.messages.descs) - 1)
	}
	return err
}

func (s *incastVI) send(number int64) (over bool, err error) {
	if err = s.room(); err == nil {
		err = s.post(s.vi.PostSend)
	}
	return s.heard == incastOver, failed(s.vi, "send", err)
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
	return failed(s.vi, doing, err)
}

func (s *incastVI) finish(messages int64) (out incastSent, err error) {
	if err = s.room(); err == nil {
		err = s.messages.word(s.vi.PostSend, uint32(messages))
	}
	for err == nil && s.heard != incastAll {
		err = s.listen(true)
	}
	if err == nil {
		err = s.sent(0)
	}
	if err == nil {
		err = s.vi.Disconnect()
	}
	st := s.nic.Status()
	return incastSent{messages, st.Socket["tx_frames"], st.Counters.Resent, st.Socket["tx_lost_busy"] + st.Socket["tx_invalid_descs"]}, err
}

func (s *incastVI) close() error { return s.nic.Close() }

// incastVIs are the streams of all senders as the receiver has them, on one completion queue.
type incastVIs struct {
	in    incastInput
	nic   *vipl.NIC
	cq    *vipl.CQ
	ends  []*incastEnd
	of    map[*vipl.VI]int
	last  *incastEnd // whose message next has returned, and is to be posted again
	watch watchdog

	before map[string]uint64 // of the program
}

func takeIncastVI(j *job, in incastInput) (_ incastReceiver, err error) {
	r := &incastVIs{in: in, of: map[*vipl.VI]int{}, watch: watchdog{stop: j.stop, most: incastLimit}}
	if r.nic, err = openNIC(j.params, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
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
		c, err := r.nic.ConnectWait(incastAddress(r.in, i), incastLimit)
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
	case e.gone && d != nil && d.Status()&vipl.StatusFlushed != 0: // by the end of the connection
		return -1, nil, nil
	case err != nil:
		return -1, nil, failed(vi, fmt.Sprintf("receive from sender %d", i), err)
	}
	number := e.messages.done
	e.messages.done++
	if _, last := d.Immediate(); last { // it comes behind all messages
		e.gone = true
		return -1, nil, r.word(e, incastAll)
	}
	if int(d.Length) != r.in.Bytes {
		return -1, nil, fmt.Errorf("a message of %d bytes came from sender %d, not of %d", d.Length, i, r.in.Bytes)
	}
	r.last = e
	return i, e.slot(number), nil
}

// again posts a receive in the place of the one that was taken, and says so now and then.
func (r *incastVIs) again(e *incastEnd) error {
	err := e.post(e.vi.PostRecv)
	if err == nil && (e.messages.posted-incastDepth)%incastCredit == 0 {
		return r.word(e, incastRoom)
	}
	return failed(e.vi, "answer a sender", err)
}

// word sends a word, as soon as there is room for it.
func (r *incastVIs) word(e *incastEnd, w uint32) error {
	for e.words.out() > 0 {
		_, err := e.vi.SendDone()
		if err == vipl.ErrNotDone {
			if e.words.out() < len(e.words.descs) {
				break
			}
			if _, err = e.vi.SendWait(maxSleep); errors.Is(err, vipl.ErrTimeout) {
				if err = r.watch.blocked(); err == nil {
					continue
				}
			}
		}
		if err != nil {
			return failed(e.vi, "answer a sender", err)
		}
		e.words.done++
	}
	return failed(e.vi, "answer a sender", e.words.word(e.vi.PostSend, w))
}

func (r *incastVIs) end() error {
	var err error
	for _, e := range r.ends {
		if err == nil {
			err = r.word(e, incastOver)
		}
	}
	return err
}

func (r *incastVIs) left() (n int) {
	for _, e := range r.ends {
		if st, err := e.vi.Query(); !e.gone || err == nil && st.State == vipl.Connected {
			n++
		}
	}
	return n
}

// Frames that were sent may be on their way for incastQuiet at most, and are over when none
// has come for incastStill.
const (
	incastQuiet = 5 * time.Second
	incastStill = 20 * time.Millisecond
)

func (r *incastVIs) count() (seen, dropped, unnamed uint64) {
	before, since := uint64(0), time.Now()
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
		if seen != before {
			before, since = seen, time.Now()
		}
		if time.Since(since) > incastStill && unnamed == 0 || time.Now().After(end) {
			return seen, dropped + socket, unnamed
		}
	}
}

func (r *incastVIs) facts() Facts { return factsOf(r.nic) }

func (r *incastVIs) close() error { return r.nic.Close() }

// incastTCP is a sender's stream over the kernel's TCP.
type incastTCP struct {
	*tcp
	message []byte
}

func openIncastTCP(j *job, in incastInput) (incastSender, error) {
	p := j.params
	p.MaxBytes = in.Bytes
	t, err := openTCP(p, watchdog{stop: j.stop, most: incastLimit}, true)
	if err != nil {
		return nil, err
	}
	s := &incastTCP{tcp: t, message: make([]byte, in.Bytes)}
	for end := time.Now().Add(incastLimit); ; time.Sleep(connectPause) { // it may not listen yet
		err = t.Connect(Hello{Addr: in.Receiver, Port: incastPort})
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(end) || j.stop.Load() {
			break
		}
		t.Close()
	}
	if err == nil {
		err = t.write([]byte{byte(in.Number)})
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *incastTCP) send(number int64) (over bool, err error) {
	if number < incastCheck {
		copy(s.message, content(int(number), 0, len(s.message)))
	}
	if err := s.write(s.message); err != nil {
		return false, err
	}
	// One byte says that it is over.
	n, errno := recvNow(s.fd, make([]byte, 1))
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return false, nil
	case errno != 0:
		return false, errno
	case n == 0:
		return false, io.ErrUnexpectedEOF
	}
	return true, nil
}

func (s *incastTCP) finish(messages int64) (out incastSent, err error) {
	if err := unix.Shutdown(s.fd, unix.SHUT_WR); err != nil {
		return out, err
	}
	// The receiver does so when it has everything.
	switch _, err := s.read(make([]byte, 1)); {
	case err == nil:
		return out, errors.New("the receiver has sent something")
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return out, err
	}
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return out, err
	}
	return incastSent{Messages: messages, Frames: uint64(info.Segs_out), Resent: uint64(info.Total_retrans)}, nil
}

func (s *incastTCP) close() error { return s.Close() }

// incastTCPs are the streams of all senders as the receiver has them.
type incastTCPs struct {
	listener *tcp
	streams  []*incastPart
	polled   []unix.PollFd
	ready    []int // streams that poll has found something of
	ending   bool
	watch    watchdog
}

// incastPart is a stream and the part of a message that has come of it.
type incastPart struct {
	fd      int
	message []byte
	filled  int
	gone    bool
}

func takeIncastTCP(j *job, in incastInput) (incastReceiver, error) {
	p := j.params
	p.Server, p.Port, p.MaxBytes = true, incastPort, in.Bytes
	t, err := openTCP(p, watchdog{}, true)
	if err != nil {
		return nil, err
	}
	r := &incastTCPs{listener: t, watch: watchdog{stop: j.stop, most: incastLimit}}
	for range in.Senders {
		r.streams = append(r.streams, &incastPart{fd: -1, message: make([]byte, in.Bytes)})
	}
	if err := unix.Listen(t.listener, in.Senders); err != nil { // more than openTCP does
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *incastTCPs) connect() error {
	for range r.streams {
		fd, err := acceptWithin(r.listener.listener, incastLimit)
		if err != nil {
			return err
		}
		// Blocking, as its first byte comes with the connection.
		number := make([]byte, 1)
		tv := unix.NsecToTimeval(int64(incastLimit))
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err == nil {
			_, err = unix.Read(fd, number)
		}
		if i := int(number[0]); err != nil || i >= len(r.streams) || r.streams[i].fd >= 0 {
			return errors.Join(err, unix.Close(fd), errors.New("a stream has not said whose it is"))
		} else {
			r.streams[i].fd = fd
		}
	}
	return nil
}

func (r *incastTCPs) next() (int, []byte, error) {
	if len(r.ready) == 0 {
		if err := r.poll(); err != nil || len(r.ready) == 0 {
			return -1, nil, err
		}
	}
	i := r.ready[0]
	r.ready = r.ready[1:]
	s := r.streams[i]
	if s.filled == len(s.message) {
		s.filled = 0
	}
	n, err := unix.Read(s.fd, s.message[s.filled:])
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return -1, nil, nil
	case err != nil:
		return -1, nil, fmt.Errorf("receive from sender %d: %w", i, err)
	case n == 0:
		return -1, nil, r.ended(i)
	}
	r.watch.progress()
	if s.filled += n; s.filled < len(s.message) {
		return -1, nil, nil
	}
	return i, s.message, nil
}

// ended takes the end of a stream.
func (r *incastTCPs) ended(i int) error {
	s := r.streams[i]
	if !r.ending || s.filled%len(s.message) != 0 {
		return fmt.Errorf("sender %d has ended its stream, %d bytes into a message", i, s.filled)
	}
	s.gone = true
	return unix.Shutdown(s.fd, unix.SHUT_WR)
}

// poll waits for something of any stream.
func (r *incastTCPs) poll() error {
	r.polled, r.ready = r.polled[:0], r.ready[:0]
	for _, s := range r.streams {
		fd := int32(s.fd)
		if s.gone {
			fd = -1 // poll(2) ignores it
		}
		r.polled = append(r.polled, unix.PollFd{Fd: fd, Events: unix.POLLIN})
	}
	_, err := unix.Poll(r.polled, int(maxSleep/time.Millisecond))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	for i := range r.polled {
		if err == nil && r.polled[i].Revents != 0 {
			r.ready = append(r.ready, i)
		}
	}
	if len(r.ready) == 0 {
		return r.watch.blocked()
	}
	return nil
}

func (r *incastTCPs) end() error {
	r.ending = true
	for _, s := range r.streams {
		if _, err := unix.Write(s.fd, []byte{0}); err != nil {
			return err
		}
	}
	return nil
}

func (r *incastTCPs) left() (n int) {
	for _, s := range r.streams {
		if !s.gone {
			n++
		}
	}
	return n
}

func (r *incastTCPs) count() (seen, dropped, unnamed uint64) { return 0, 0, 0 }

func (r *incastTCPs) facts() Facts { return Facts{} }

func (r *incastTCPs) close() error {
	for _, s := range r.streams {
		if s.fd >= 0 {
			unix.Close(s.fd)
			s.fd = -1
		}
	}
	return r.listener.Close()
}
