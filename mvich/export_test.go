package mvich

import (
	"errors"
	"math"

	"viaxdp/vipl"
)

var errTest = errors.New("for the test")

// NewsOfAdmission has w admit a caller that does not exist, after the death of one rank and before that of the next
// and Finalize's bye. It returns the news that waits to be sent to the caller, deaths by rank and the bye as -1, and
// how much of it is left once the admission has failed.
func NewsOfAdmission(w *World, caller, before, meanwhile int) (news []int, left int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[caller]
	w.lose(w.peers[before], errTest)
	l := w.prepareAdmission(p)
	if l == nil {
		return nil, 0, errors.New("it is rejected")
	}
	w.lose(w.peers[meanwhile], errTest)
	w.queueControl(p, packet{header: header{kind: kindBye}})
	p.control.each(func(c packet) {
		if c.header.kind == kindBye {
			c.header.tag = -1
		}
		news = append(news, int(c.header.tag))
	})
	w.admitted(p, l, vipl.RemoteAttributes{}, errTest)
	return news, p.control.len(), nil
}

// AdmissionAfter has w admit a caller whose first packet arrives before the admission fails.
func AdmissionAfter(w *World, caller int, packet []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[caller]
	l := w.prepareAdmission(p)
	if l == nil {
		return errors.New("it is rejected")
	}
	if packet != nil {
		if err := w.receive(p, packet); err != nil {
			return err
		}
	}
	w.admitted(p, l, vipl.RemoteAttributes{}, errTest)
	return nil
}

// CallsExpected reports whether w has called rank, or would now, when the waiting time is over.
func CallsExpected(w *World, rank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[rank]
	w.callExpected(p)
	return p.calling || p.state != apart
}

// Missing is how many credits of a connection are lost: w does not have them, and they are not due to it from other.
// Both worlds must be idle. It is 0 if they are not connected.
func Missing(w, other *World) int {
	look := func(w *World, rank int) (has, owes int, there bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		p := w.peers[rank]
		return p.credits, p.acksDue, p.state == joined
	}
	has, _, here := look(w, other.rank)
	_, owes, there := look(other, w.rank)
	if !here || !there {
		return 0
	}
	return w.set.credits - has - owes
}

// LookAt has w probe rank.
func LookAt(w *World, rank int) { w.checkAlive(w.peers[rank]) }

// LookAround has w probe the ranks that an AnySource call may wait for.
func LookAround(w *World) { w.checkLiveness() }

// Missed reports whether probes of rank have failed.
func Missed(w *World, rank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[rank].checks != vigil{}
}

// LastContext has w give one more context, and none after that.
func LastContext(w *World) {
	w.mu.Lock()
	defer w.mu.Unlock()
	step := contextStep * uint32(len(w.peers))
	w.nextContext += (math.MaxUint32 - w.nextContext) / step * step
}

// SpinAfterWake is how often w polls before and after a sleep that Wake has ended.
func SpinAfterWake(w *World) (before, after int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spin = leastSpin
	w.cq.Wake()
	w.sleep()
	return leastSpin, w.spin
}

// Alone is a communicator of one rank here, with a context.
func (c *Comm) Alone(rank int, context uint32) *Comm {
	return c.w.newComm(context, []int{c.group[rank]}, 0)
}

// Under is a communicator of this rank and another one, which is its first rank.
func (c *Comm) Under(first int, context uint32) *Comm {
	return c.w.newComm(context, []int{c.group[first], c.w.rank}, 1)
}

// Token is rank's address with its token.
func Token(w *World, rank int) vipl.NetAddress { return w.peers[rank].host.vipl() }

// BoundEnvelopes sets how many envelopes a rank may send before w takes it for dead.
func BoundEnvelopes(w *World, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set.envelopes = most
}

// Pinned is how many registrations of w are in use.
func Pinned(w *World) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.regs.sorted {
		if r.pinned() {
			n++
		}
	}
	return n
}

// Shut is the last step of Finalize, and of an Init that fails.
func Shut(w *World) error { return w.shut() }

// CallTurn bounds one request.
const CallTurn = callTurn

// LongWait is after what time a call that sleeps looks at the time.
const LongWait = longWait
