package torture

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// A dialogue is one end of a connection on which one side, the sender, sends one message
// of each kind, and the other, the receiver, answers each before the next one comes.
//
//	receiver: hello -->         answer 1 -->        answer 2 -->  ...
//	sender:           short -->             long -->              ...
type dialogue struct {
	nic           *vipl.NIC
	vi            *vipl.VI
	recvs, sends  *ring
	slots, source *vipl.Region // that the peer writes, and reads
	steps         *steps       // nil: steps are not counted
	waitLimit     time.Duration

	session  uint64 // of the connection: bytes follow from it
	come     int    // messages, or answers, that have come
	complete int    // messages sent that have completed
}

// The kinds of messages, in their order. Stages of a dialogue are called like them, but
// for the first and the last ones.
const (
	stageConnect    = "connect"
	stageShort      = "short"
	stageLong       = "long"
	stageWrite      = "write"
	stageRead       = "read" // reported by an empty message behind it
	stageDisconnect = "disconnect"
	stageClose      = "close"
)

func kindsOf(level vipl.ReliabilityLevel) []string {
	if level == vipl.UnreliableDelivery {
		return []string{stageShort, stageLong, stageWrite}
	}
	return []string{stageShort, stageLong, stageWrite, stageRead}
}

const (
	longBytes = 4000 // three frames
	posted    = 8    // receives; more than ever come without an answer
	// ackTime is how long a receiver waits before it answers, so that the acknowledgement has
	// a frame of its own. Nothing but the names of steps depends on it.
	ackTime = time.Millisecond
)

func newDialogue(nic *vipl.NIC, level vipl.ReliabilityLevel) (_ *dialogue, err error) {
	defer fail.Catch(&err)
	d := &dialogue{nic: nic, waitLimit: waitLimit}
	tag := fail.Must(nic.CreatePtag())
	d.vi = fail.Must(nic.CreateVI(vipl.VIAttributes{
		Level: level, Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery,
	}, nil, nil))
	for _, r := range []**ring{&d.recvs, &d.sends} {
		*r = newRing(nic, tag, posted, longBytes)
	}
	d.slots = fail.Must(nic.AllocMem(longBytes, vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true}))
	d.source = fail.Must(nic.AllocMem(longBytes, vipl.MemAttributes{Ptag: tag, EnableRDMARead: true}))
	return d, nil
}

// begin gets ready for a connection.
func (d *dialogue) begin(session uint64) error {
	d.session, d.come, d.complete = session, 0, 0
	clear(d.slots.Bytes())
	fillPattern(d.source.Bytes(), session)
	for d.recvs.room() > 0 {
		if err := d.post(); err != nil {
			return err
		}
	}
	return nil
}

func (d *dialogue) post() error {
	r, _ := d.recvs.next()
	r.SetSegments(d.recvs.segment(longBytes))
	d.steps.at("receive is posted")
	if err := d.vi.PostRecv(r, d.recvs.region.Handle()); err != nil {
		return err
	}
	d.recvs.push(opReceive)
	return nil
}

// text is the bytes of message n.
func (d *dialogue) text(b []byte, h head) {
	h.session = d.session
	h.fill(b)
}

// say posts a send of o and waits until it is complete.
func (d *dialogue) say(o op, set func(s *vipl.Descriptor, buf []byte)) error {
	s, buf := d.sends.next()
	set(s, buf)
	d.steps.at("send is posted")
	if err := d.vi.PostSend(s, d.sends.region.Handle()); err != nil {
		return fmt.Errorf("post send: %w", err)
	}
	d.sends.push(o)
	d.steps.at("post has returned")
	s, err := d.vi.SendWait(d.waitLimit)
	if s == nil {
		return fmt.Errorf("send: %w", err)
	}
	_, _, buf, inOrder := d.sends.pop(s)
	if !inOrder {
		return errors.New("a send completed out of order")
	}
	if err != nil {
		return d.failed(s, "send")
	}
	d.steps.at("send is done")
	if o == opRead {
		if i, ok := checkPattern(buf[:longBytes], d.session); !ok {
			return violation("RDMA read: byte %d is wrong", i)
		}
	}
	return nil
}

// hear waits for the next message.
func (d *dialogue) hear() (*vipl.Descriptor, []byte, error) {
	r, err := d.vi.RecvWait(d.waitLimit)
	if r == nil {
		return nil, nil, fmt.Errorf("receive: %w", err)
	}
	_, _, buf, inOrder := d.recvs.pop(r)
	if !inOrder {
		return nil, nil, violation("a receive completed out of order")
	}
	if err != nil {
		return nil, nil, d.failed(r, "receive")
	}
	d.steps.at("receive is done")
	return r, buf[:min(int(r.Length), len(buf))], nil
}

// broken is a broken promise.
type broken struct{ error }

func violation(format string, args ...any) error { return broken{fmt.Errorf(format, args...)} }

var errEnded = errors.New("the connection has ended")

// failed judges a descriptor that completed in error: only the connection's end does that.
func (d *dialogue) failed(x *vipl.Descriptor, what string) error {
	if x.Status()&vipl.StatusErrorMask&^(vipl.StatusFlushed|vipl.StatusTransportError) != 0 {
		return violation("a %s completed with %v", what, x.Status())
	}
	return errEnded
}

// stage announces the next stage.
func (d *dialogue) stage(n int, kinds []string) {
	if d.steps == nil {
		return
	}
	if n < len(kinds) {
		d.steps.begin(kinds[n])
	} else {
		d.steps.begin(stageDisconnect)
	}
}

// send is the sender's part.
func (d *dialogue) send(kinds []string) error {
	_, b, err := d.hear()
	if err != nil {
		return err
	}
	var hello head
	if err := hello.parse(b); err != nil || hello.kind != kindHello {
		return violation("hello: %v, kind %d", err, hello.kind)
	}
	for n, kind := range kinds {
		d.stage(n, kinds)
		if err := d.sendOne(kind, uint32(n+1), &hello); err != nil {
			return err
		}
		d.complete++
		r, b, err := d.hear()
		if err != nil {
			return err
		}
		if immediate, ok := r.Immediate(); !ok || immediate != uint32(n+1) || len(b) != 0 {
			return violation("answer %d: %d bytes, immediate data %d (%v)", n+1, len(b), immediate, ok)
		}
		d.come++
	}
	d.stage(len(kinds), kinds)
	return nil
}

// sendOne sends message n.
func (d *dialogue) sendOne(kind string, n uint32, hello *head) error {
	data := head{kind: kindData, seq: uint64(n)}
	switch kind {
	case stageWrite:
		return d.say(opWrite, func(s *vipl.Descriptor, buf []byte) {
			d.text(buf[:longBytes], data)
			s.SetRDMAWrite(vipl.AddressSegment{Data: hello.slots, Handle: vipl.MemHandle(hello.handle)}, d.sends.segment(longBytes))
			s.SetImmediate(n)
		})
	case stageRead:
		if err := d.say(opRead, func(s *vipl.Descriptor, buf []byte) {
			clear(buf)
			s.SetRDMARead(vipl.AddressSegment{Data: hello.from, Handle: vipl.MemHandle(hello.source)}, d.sends.segment(longBytes))
		}); err != nil {
			return err
		}
		return d.sayNumber(n)
	}
	bytes := headLen
	if kind == stageLong {
		bytes = longBytes
	}
	return d.say(opSend, func(s *vipl.Descriptor, buf []byte) {
		d.text(buf[:bytes], data)
		s.SetSegments(d.sends.segment(bytes))
	})
}

// sayNumber sends an empty message with a number.
func (d *dialogue) sayNumber(n uint32) error {
	return d.say(opSend, func(s *vipl.Descriptor, _ []byte) {
		s.SetSegments()
		s.SetImmediate(n)
	})
}

// receive is the receiver's part.
func (d *dialogue) receive(kinds []string) error {
	d.stage(0, kinds) // the first message may be the answer to the hello
	if err := d.say(opSend, func(s *vipl.Descriptor, buf []byte) {
		slots, source := d.slots.Remote(0), d.source.Remote(0)
		d.text(buf[:headLen], head{
			kind: kindHello, handle: uint32(slots.Handle), source: uint32(source.Handle), slots: slots.Data, from: source.Data,
		})
		s.SetSegments(d.sends.segment(headLen))
	}); err != nil {
		return err
	}
	for n, kind := range kinds {
		r, b, err := d.hear()
		if err != nil {
			return err
		}
		if err := d.check(kind, uint64(n+1), r, b); err != nil {
			return err
		}
		d.come++
		if err := d.post(); err != nil {
			return err
		}
		time.Sleep(ackTime)
		// What comes from now on may be the answer to the answer.
		d.stage(n+1, kinds)
		if err := d.sayNumber(uint32(n + 1)); err != nil {
			return err
		}
	}
	return nil
}

// check judges message n.
func (d *dialogue) check(kind string, n uint64, r *vipl.Descriptor, b []byte) error {
	immediate, _ := r.Immediate()
	written := r.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite
	switch {
	case written != (kind == stageWrite):
		return violation("message %d is no %s: %v", n, kind, r.Status())
	case written:
		b = d.slots.Bytes()
		fallthrough
	case kind == stageRead:
		if uint64(immediate) != n || kind == stageRead && len(b) != 0 {
			return violation("message %d: %d bytes, immediate data %d", n, len(b), immediate)
		}
	}
	if kind == stageRead {
		return nil
	}
	want := make([]byte, headLen)
	if kind != stageShort {
		want = make([]byte, longBytes)
	}
	d.text(want, head{kind: kindData, seq: n})
	if !bytes.Equal(b, want) {
		return violation("message %d of %d bytes is not what was sent", n, len(b))
	}
	return nil
}

// landed says how much of the RDMA write lies in memory, or at which byte it is not
// the beginning of what was sent.
func (d *dialogue) landed(kinds []string) (n int, err error) {
	want := make([]byte, longBytes)
	for i, kind := range kinds {
		if kind == stageWrite {
			d.text(want, head{kind: kindData, seq: uint64(i + 1)})
		}
	}
	got := d.slots.Bytes()
	for n < len(got) && got[n] == want[n] {
		n++
	}
	for i, b := range got[n:] {
		if b != 0 {
			return n, violation("RDMA write: right up to byte %d, and byte %d is written", n, n+i)
		}
	}
	return n, nil
}

// end disconnects and takes all descriptors back.
func (d *dialogue) end() error {
	if err := d.vi.Disconnect(); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	d.steps.at("disconnect has returned")
	for _, q := range []struct {
		ring *ring
		done func() (*vipl.Descriptor, error)
		name string
	}{{d.recvs, d.vi.RecvDone, "receive"}, {d.sends, d.vi.SendDone, "send"}} {
		for q.ring.outstanding() > 0 {
			x, err := q.done()
			if x == nil {
				return violation("%d posted %ss did not complete with the connection's end", q.ring.outstanding(), q.name)
			}
			if _, _, _, inOrder := q.ring.pop(x); !inOrder {
				return violation("a %s completed out of order", q.name)
			}
			if err == nil && q.ring == d.recvs {
				return violation("an unexpected message was left")
			}
			if err != nil {
				if err := d.failed(x, q.name); err != errEnded {
					return err
				}
			}
		}
	}
	if s, err := d.vi.Query(); err != nil || s.State != vipl.Idle {
		return violation("after Disconnect the VI is %v (%v)", s.State, err)
	}
	return nil
}
