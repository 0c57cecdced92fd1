package bench

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/testbed"
	"viaxdp/kagent"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// Sizes of a queue's stream.
const (
	queueDepth = 256 // messages under way, at most
	queueArena = 16 << 20
	queueCheck = 8 // messages whose every byte is checked

	// While one connection waits for its thread, or for the others to be made, its
	// peer, who has the same thread, is not to give it up.
	queueSilence = 20 * time.Second
)

// queueStream is one queue: a connection, both of whose ends are this process's.
type queueStream struct {
	nics   [2]*vipl.Nic
	vis    [2]*vipl.VI
	descs  [2]ring
	memory [2]*vipl.Region
	done   [viList]*vipl.Descriptor

	counted      int
	took, waited time.Duration
}

func (q *Spread) openStream(queue int, huge bool) (_ *queueStream, err error) {
	s := &queueStream{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	policy := hugepages.Avoid
	if huge {
		policy = hugepages.Auto
	}
	for i := range s.nics {
		if err := q.site.Do(i, func() (err error) {
			s.nics[i], err = vipl.OpenNic(xdpInterface, vipl.WithQueue(queue), vipl.WithMode(xdpnic.ModeNative, true),
				vipl.WithSteering(kagent.SteerOff), vipl.WithHugepages(policy), vipl.WithArena(queueArena),
				vipl.WithSilence(queueSilence))
			return err
		}); err != nil {
			return nil, err
		}
		if err := s.layOut(i); err != nil {
			return nil, err
		}
	}
	return s, s.connect(q.site, queue)
}

// layOut makes a side's VI, its descriptors and its memory.
func (s *queueStream) layOut(i int) error {
	nic := s.nics[i]
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	attributes := vipl.MemAttributes{Ptag: tag}
	if s.memory[i], err = nic.AllocMem(MaxMessage, attributes); err != nil {
		return err
	}
	const step = (vipl.ControlSegmentSize + vipl.DataSegmentSize + vipl.DescriptorAlignment - 1) &^ (vipl.DescriptorAlignment - 1)
	region, err := nic.AllocMem(queueDepth*step, attributes)
	if err != nil {
		return err
	}
	s.descs[i].handle = region.Handle()
	for j := range queueDepth {
		d, err := region.Descriptor(j*step, 1)
		if err != nil {
			return err
		}
		s.descs[i].descs = append(s.descs[i].descs, d)
	}
	s.vis[i], err = nic.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: MaxMessage, Ptag: tag}, nil, nil)
	return err
}

// connect joins the two VIs; the second one's side waits for the first.
func (s *queueStream) connect(site *testbed.Site, queue int) error {
	address := func(side int) vipl.NetAddress {
		return vipl.NetAddress{Host: site.Ends[side].IPv4.Addr(), Discriminator: fmt.Appendf(nil, "queue %d", queue)}
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := s.nics[1].ConnectWait(address(1), patience)
		if err == nil {
			err = c.Accept(s.vis[1])
		}
		accepted <- err
	}()
	var err error
	for deadline := time.Now().Add(patience); ; time.Sleep(connectPause) { // it may not wait yet
		_, err = s.vis[0].ConnectRequest(address(0), address(1), patience)
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(deadline) {
			break
		}
	}
	return errors.Join(err, <-accepted)
}

func (s *queueStream) close() error {
	var errs []error
	for _, nic := range s.nics {
		if nic != nil {
			errs = append(errs, nic.Close())
		}
	}
	return errors.Join(errs...)
}

// run goes through the phases on the calling thread, which is locked.
func (s *queueStream) run(cpu, bytes int, phase *atomic.Int32, stop *atomic.Bool, checked func()) error {
	w := watchdog{stop: stop, most: queueSilence}
	err := testbed.PinThread(cpu)
	if err == nil {
		err = s.check(bytes, &w)
	}
	checked()
	if err != nil {
		return err
	}
	s.counted = 0
	for phase.Load() < queuesCount {
		if _, err := s.turn(bytes, &w); err != nil {
			return err
		}
	}
	waited, began := waitTime(), time.Now()
	// A thread that got no CPU meanwhile has its time all the same.
	for phase.Load() < queuesEnd || s.counted == 0 {
		n, err := s.turn(bytes, &w)
		if err != nil {
			return err
		}
		s.counted += n
	}
	s.took, s.waited = time.Since(began), max(0, waitTime()-waited)
	return s.settle(bytes, &w)
}

func (s *queueStream) sends() *ring { return &s.descs[0] }
func (s *queueStream) recvs() *ring { return &s.descs[1] }

// turn posts a list of messages, if so many may be under way, and takes off what
// has arrived.
func (s *queueStream) turn(bytes int, w *watchdog) (arrived int, err error) {
	if depth := min(queueDepth, max(viList, viStream/slot(bytes))); max(s.recvs().out(), s.sends().out())+viList <= depth {
		if err := s.post(bytes, viList); err != nil {
			return 0, err
		}
	}
	return s.take(bytes, w)
}

// post posts receives for messages, and sends them.
func (s *queueStream) post(bytes, messages int) error {
	for _, side := range []int{1, 0} {
		r := &s.descs[side]
		for range messages {
			d := r.next()
			d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
			d.SetSegments(s.memory[side].Segment(0, bytes))
			r.staged++
		}
	}
	if err := s.recvs().push(s.vis[1].PostRecv, s.vis[1].PostRecvs); err != nil {
		return s.fail(1, "receive", err)
	}
	if err := s.sends().push(s.vis[0].PostSend, s.vis[0].PostSends); err != nil {
		return s.fail(0, "send", err)
	}
	return nil
}

// take takes off what has arrived, and sends that are complete. Both sides have
// the thread by turns: an acknowledgement needs both.
func (s *queueStream) take(bytes int, w *watchdog) (arrived int, err error) {
	if arrived, err = s.dones(1, "receive", s.vis[1].RecvDones); err != nil {
		return 0, err
	}
	for _, d := range s.done[:arrived] {
		if int(d.Length) != bytes {
			return 0, fmt.Errorf("a message of %d bytes came, not of %d", d.Length, bytes)
		}
	}
	sent, err := s.dones(0, "send", s.vis[0].SendDones)
	if err != nil {
		return 0, err
	}
	if arrived+sent == 0 {
		return 0, w.idle()
	}
	w.progress()
	return arrived, nil
}

// dones takes completed descriptors of one side off; they are in s.done.
func (s *queueStream) dones(side int, doing string, take func([]*vipl.Descriptor) (int, error)) (int, error) {
	r := &s.descs[side]
	if r.out() == 0 {
		return 0, nil // an empty queue is an error of the VIPL
	}
	n, err := take(s.done[:])
	r.done += n
	if err != nil && !errors.Is(err, vipl.ErrNotDone) {
		return n, s.fail(side, doing, err, s.done[:n]...)
	}
	return n, nil
}

// check sends a few messages one by one and compares every byte.
func (s *queueStream) check(bytes int, w *watchdog) error {
	for i := range queueCheck {
		copy(s.memory[0].Bytes(), content(i, 0, bytes))
		clear(s.memory[1].Bytes()[:bytes])
		if err := s.post(bytes, 1); err != nil {
			return err
		}
		if err := s.settle(bytes, w); err != nil {
			return err
		}
		if err := verify(i, 0, s.memory[1].Bytes()[:bytes]); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until nothing is under way.
func (s *queueStream) settle(bytes int, w *watchdog) error {
	for s.recvs().out()+s.sends().out() > 0 {
		if _, err := s.take(bytes, w); err != nil {
			return err
		}
	}
	return nil
}

// fail adds to an error the last descriptor's status, and what the side's VI
// knows of its end.
func (s *queueStream) fail(side int, doing string, err error, done ...*vipl.Descriptor) error {
	if d := last(done); d != nil {
		err = fmt.Errorf("%w: status %v", err, d.Status())
	}
	if st, qerr := s.vis[side].Query(); qerr == nil && st.Cause != nil {
		err = fmt.Errorf("%w; the VI is in state %v: %w", err, st.State, st.Cause)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
