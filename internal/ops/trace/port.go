package trace

import (
	"sync/atomic"
	"time"

	"viaxdp/internal/agent/provider"
	"viaxdp/xdpnic"
)

// The moments, in the order of the way. Those of the sender but the first are
// after the step that they are named for.
const (
	posting  = iota // PostSend is called
	queued          // the frame is on the TX ring
	ringing         // the doorbell is about to ring
	rung            // the kernel has returned
	posted          // PostSend has returned
	seen            // the receiver's poll has the frame
	received        // RecvDone has returned the message
	moments
)

var epoch = time.Now()

// stamps are those of the message under way, in ns since the epoch; 0: not yet.
type stamps [moments]atomic.Int64

// mark stamps a moment, the first time that it comes.
func (s *stamps) mark(moment int) {
	s[moment].CompareAndSwap(0, int64(time.Since(epoch)))
}

// port stamps what goes through it.
type port struct {
	provider.Port
	at     *stamps
	sender bool
}

func (p *port) Send(addr uint64, n int, retain bool) bool {
	ok := p.Port.Send(addr, n, retain)
	if p.sender && ok {
		p.at.mark(queued)
	}
	return ok
}

func (p *port) SendSegs(segs []xdpnic.Desc, retain bool) bool {
	ok := p.Port.SendSegs(segs, retain)
	if p.sender && ok {
		p.at.mark(queued)
	}
	return ok
}

func (p *port) Flush() error {
	// A doorbell for something else, an acknowledgement, is not the message's.
	if !p.sender || p.at[queued].Load() == 0 {
		return p.Port.Flush()
	}
	p.at.mark(ringing)
	err := p.Port.Flush()
	p.at.mark(rung)
	return err
}

func (p *port) Receive(frames []xdpnic.Frame) int {
	n := p.Port.Receive(frames)
	if n > 0 && !p.sender && p.at[posting].Load() != 0 {
		p.at.mark(seen)
	}
	return n
}
