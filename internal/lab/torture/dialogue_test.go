package torture

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// A dialogue is one end of a connection on which one side, the sender, sends one message
// of each kind, and the other, the receiver, answers each before the next one comes. Its
// methods fail by package fail.
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

func newDialogue(nic *vipl.NIC, level vipl.ReliabilityLevel) *dialogue {
	d := &dialogue{nic: nic, waitLimit: waitLimit}
	tag := fail.Must(nic.CreatePtag())
	d.vi = fail.Must(nic.CreateVI(vipl.VIAttributes{
		Level: level, Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery,
	}, nil, nil))
	d.recvs, d.sends = newRing(nic, tag, posted, longBytes), newRing(nic, tag, posted, longBytes)
	d.slots = fail.Must(nic.AllocMem(longBytes, vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true}))
	d.source = fail.Must(nic.AllocMem(longBytes, vipl.MemAttributes{Ptag: tag, EnableRDMARead: true}))
	return d
}

// begin gets ready for a connection.
func (d *dialogue) begin(session uint64) {
	d.session, d.come, d.complete = session, 0, 0
	clear(d.slots.Bytes())
	fillPattern(d.source.Bytes(), session)
	for d.recvs.room() > 0 {
		d.post()
	}
}

func (d *dialogue) post() {
	r, _ := d.recvs.next()
	r.SetSegments(d.recvs.segment(longBytes))
	d.steps.at("receive is posted")
	fail.If(d.vi.PostRecv(r, d.recvs.region.Handle()))
	d.recvs.push(opReceive)
}

// text is the bytes of message n.
func (d *dialogue) text(b []byte, h head) {
	h.session = d.session
	h.fill(b)
}

// say posts a send of o and waits until it is complete.
func (d *dialogue) say(o op, set func(s *vipl.Descriptor, buf []byte)) {
	s, buf := d.sends.next()
	set(s, buf)
	d.steps.at("send is posted")
	fail.Wrap(d.vi.PostSend(s, d.sends.region.Handle()), "post send")
	d.sends.push(o)
	d.steps.at("post has returned")
	buf = d.taken(d.sends, "send", func() (*vipl.Descriptor, error) { return d.vi.SendWait(d.waitLimit) })
	d.steps.at("send is done")
	if o == opRead {
		i, ok := checkPattern(buf[:longBytes], d.session)
		violatedIf(!ok, "RDMA read: byte %d is wrong", i)
	}
}

// hear waits for the next message.
func (d *dialogue) hear() (r *vipl.Descriptor, buf []byte) {
	buf = d.taken(d.recvs, "receive", func() (_ *vipl.Descriptor, err error) {
		r, err = d.vi.RecvWait(d.waitLimit)
		return r, err
	})
	d.steps.at("receive is done")
	return r, buf[:min(int(r.Length), len(buf))]
}

// taken is the buffer of the oldest descriptor of a ring, which next dequeues. Only the connection's end makes that
// complete in error.
func (d *dialogue) taken(r *ring, what string, next func() (*vipl.Descriptor, error)) []byte {
	x, err := next()
	if x == nil {
		fail.With("%s: %w", what, err)
	}
	_, _, buf, inOrder := r.pop(x)
	violatedIf(!inOrder, "a %s completed out of order", what)
	if err != nil {
		violatedIf(x.Status()&vipl.StatusErrorMask&^(vipl.StatusFlushed|vipl.StatusTransportError) != 0, "a %s completed with %v", what, x.Status())
		fail.If(errEnded)
	}
	return buf
}

// broken is a broken promise.
type broken struct{ error }

func violatedIf(wrong bool, format string, args ...any) {
	if wrong {
		fail.If(broken{fmt.Errorf(format, args...)})
	}
}

var errEnded = errors.New("the connection has ended")

// stage announces the next stage.
func (d *dialogue) stage(n int, kinds []string) {
	d.steps.begin(append(kinds[:len(kinds):len(kinds)], stageDisconnect)[n])
}

// send is the sender's part.
func (d *dialogue) send(kinds []string) {
	_, b := d.hear()
	var hello head
	err := hello.parse(b)
	violatedIf(err != nil || hello.kind != kindHello, "hello: %v, kind %d", err, hello.kind)
	for n, kind := range kinds {
		d.stage(n, kinds)
		d.sendOne(kind, uint32(n+1), &hello)
		d.complete++
		r, b := d.hear()
		immediate, ok := r.Immediate()
		violatedIf(!ok || immediate != uint32(n+1) || len(b) != 0, "answer %d: %d bytes, immediate data %d (%v)", n+1, len(b), immediate, ok)
		d.come++
	}
	d.stage(len(kinds), kinds)
}

// sendOne sends message n.
func (d *dialogue) sendOne(kind string, n uint32, hello *head) {
	data, bytes := head{kind: kindData, seq: uint64(n)}, longBytes
	switch kind {
	case stageWrite:
		d.say(opWrite, func(s *vipl.Descriptor, buf []byte) {
			d.text(buf[:longBytes], data)
			s.SetRDMAWrite(vipl.AddressSegment{Data: hello.slots, Handle: vipl.MemHandle(hello.handle)}, d.sends.segment(longBytes))
			s.SetImmediate(n)
		})
		return
	case stageRead:
		d.say(opRead, func(s *vipl.Descriptor, buf []byte) {
			clear(buf)
			s.SetRDMARead(vipl.AddressSegment{Data: hello.from, Handle: vipl.MemHandle(hello.source)}, d.sends.segment(longBytes))
		})
		d.sayNumber(n)
		return
	case stageShort:
		bytes = headLen
	}
	d.sayText(bytes, data)
}

// sayText sends a message of its own bytes, and sayNumber an empty one with a number.
func (d *dialogue) sayText(bytes int, h head) {
	d.say(opSend, func(s *vipl.Descriptor, buf []byte) {
		d.text(buf[:bytes], h)
		s.SetSegments(d.sends.segment(bytes))
	})
}

func (d *dialogue) sayNumber(n uint32) {
	d.say(opSend, func(s *vipl.Descriptor, _ []byte) {
		s.SetSegments()
		s.SetImmediate(n)
	})
}

// receive is the receiver's part.
func (d *dialogue) receive(kinds []string) {
	d.stage(0, kinds) // the first message may be the answer to the hello
	slots, source := d.slots.Remote(0), d.source.Remote(0)
	d.sayText(headLen, head{
		kind: kindHello, handle: uint32(slots.Handle), source: uint32(source.Handle), slots: slots.Data, from: source.Data,
	})
	for n, kind := range kinds {
		r, b := d.hear()
		d.check(kind, uint64(n+1), r, b)
		d.come++
		d.post()
		time.Sleep(ackTime)
		// What comes from now on may be the answer to the answer.
		d.stage(n+1, kinds)
		d.sayNumber(uint32(n + 1))
	}
}

// check judges message n.
func (d *dialogue) check(kind string, n uint64, r *vipl.Descriptor, b []byte) {
	immediate, _ := r.Immediate()
	written := r.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite
	violatedIf(written != (kind == stageWrite), "message %d is no %s: %v", n, kind, r.Status())
	if written || kind == stageRead {
		violatedIf(uint64(immediate) != n || kind == stageRead && len(b) != 0, "message %d: %d bytes, immediate data %d", n, len(b), immediate)
	}
	want := make([]byte, longBytes)
	switch kind {
	case stageRead:
		return
	case stageWrite:
		b = d.slots.Bytes()
	case stageShort:
		want = want[:headLen]
	}
	d.text(want, head{kind: kindData, seq: n})
	violatedIf(!bytes.Equal(b, want), "message %d of %d bytes is not what was sent", n, len(b))
}

// landed says how much of the RDMA write lies in memory, or at which byte it is not
// the beginning of what was sent.
func (d *dialogue) landed(kinds []string) (n int) {
	want := make([]byte, longBytes)
	if i := slices.Index(kinds, stageWrite); i >= 0 {
		d.text(want, head{kind: kindData, seq: uint64(i + 1)})
	}
	got := d.slots.Bytes()
	for n < len(got) && got[n] == want[n] {
		n++
	}
	for i, b := range got[n:] {
		violatedIf(b != 0, "RDMA write: right up to byte %d, and byte %d is written", n, n+i)
	}
	return n
}

// end disconnects and takes all descriptors back.
func (d *dialogue) end() {
	fail.Wrap(d.vi.Disconnect(), "disconnect")
	d.steps.at("disconnect has returned")
	for d.recvs.outstanding() > 0 {
		err := fail.Try(func() { d.taken(d.recvs, "posted receive", d.vi.RecvDone) })
		violatedIf(err == nil, "an unexpected message was left")
		d.onlyEnded(err)
	}
	for d.sends.outstanding() > 0 {
		d.onlyEnded(fail.Try(func() { d.taken(d.sends, "posted send", d.vi.SendDone) }))
	}
	s, err := d.vi.Query()
	violatedIf(err != nil || s.State != vipl.Idle, "after Disconnect the VI is %v (%v)", s.State, err)
}

// onlyEnded fails unless a descriptor was done, or flushed by the connection's end.
func (d *dialogue) onlyEnded(err error) {
	if err != nil && err != errEnded {
		fail.If(broken{err})
	}
}
