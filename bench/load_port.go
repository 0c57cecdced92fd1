package bench

import (
	"errors"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// tcpLoad is a TCP connection under load. One system call sends all messages that are
// due, and one receives all that have come.
type tcpLoad struct {
	t        *tcp
	bytes    int // of a message
	out      []byte
	from, to int // out[from:to] is not written yet
	in       []byte
	at, got  int // in[at:got] was read and not given yet
}

func (l *tcpLoad) begin(r loadRound) {
	l.bytes = r.Bytes
	l.out, l.in = make([]byte, readBuffer), make([]byte, readBuffer)
}

func (l *tcpLoad) next() []byte {
	if l.to+l.bytes > len(l.out) {
		return nil
	}
	return l.out[l.to:]
}

func (l *tcpLoad) commit(n int) { l.to += n }

func (l *tcpLoad) flush() bool {
	for l.from < l.to {
		n, err := l.t.writeOnce(l.out[l.from:l.to])
		switch {
		case err == nil:
			l.from += n
		case err == errAgain:
			return false
		case !errors.Is(err, unix.EINTR):
			fail.With("send: %w", err)
		}
	}
	l.from, l.to = 0, 0
	return true
}

func (l *tcpLoad) poll() []byte {
	if l.got-l.at < l.bytes {
		l.got = copy(l.in, l.in[l.at:l.got])
		l.at = 0
		n, err := l.t.readOnce(l.in[l.got:])
		switch {
		case err == errAgain || errors.Is(err, unix.EINTR):
			return nil
		case err != nil:
			fail.With("receive: %w", err)
		case n == 0:
			fail.With("receive: %w", io.ErrUnexpectedEOF) // the peer has closed
		}
		if l.got += n; l.got < l.bytes {
			return nil
		}
	}
	p := l.in[l.at : l.at+l.bytes]
	l.at += l.bytes
	return p
}

func (l *tcpLoad) window() int { return math.MaxInt32 }

// viLoad is a VI under load. Every descriptor has a place of its own for its message.
// Messages that are due together are posted, and taken off, in lists of up to viList
// with a doorbell each; TCP sends them with one system call. No more messages are under
// way than there are receives posted at the peer.
//
// Receives stay posted from one round to the next: a VI that has carried a load carries
// nothing else afterwards.
type viLoad struct{ vi *vi }

// loadPlaces is how many places for messages there are in each direction.
const loadPlaces = 256

// loadReceives is how many receives are posted: some are for the words of a
// round.
const loadReceives = loadPlaces - 8

// The places of all descriptors fit in the region, and a window in the receives.
const (
	_ = uint(viData - loadPlaces*MaxLoadBytes)
	_ = uint(loadReceives - viList - LoadWindow)
)

// begin, see loadPort. A word in both directions says that the receives are
// posted; it takes the oldest of them.
func (l *viLoad) begin(r loadRound) {
	v := l.vi
	if v.params.MaxBytes < MaxLoadBytes {
		fail.With("opened for messages of %d bytes: a load needs %d", v.params.MaxBytes, MaxLoadBytes)
	}
	v.round = Round{ID: r.ID, Bytes: r.Bytes}
	v.lists = 1
	v.watch.progress()
	for v.recvs.out() < loadReceives+1 {
		l.postRecv()
	}
	v.word(wordReady | int(r.ID))
	v.begun(r.ID)
	v.lists = v.list(viList)
}

// placeOf is where the message of a ring's next descriptor lies.
func placeOf(r *ring) int { return (r.posted + r.staged) % loadPlaces * MaxLoadBytes }

func (l *viLoad) stageRecv() { l.vi.recvs.stage(l.vi.in.Segment(placeOf(&l.vi.recvs), MaxLoadBytes)) }

func (l *viLoad) postRecv() {
	l.stageRecv()
	l.vi.pushRecvs()
}

func (l *viLoad) next() []byte {
	v := l.vi
	if v.sends.used() == loadPlaces {
		return nil
	}
	at := placeOf(&v.sends)
	return v.out.Bytes()[at : at+MaxLoadBytes]
}

func (l *viLoad) commit(n int) {
	d := l.vi.sends.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(l.vi.out.Segment(placeOf(&l.vi.sends), n))
	l.vi.post()
}

// flush, see loadPort: what is posted is on its way when it is complete.
func (l *viLoad) flush() bool {
	l.vi.pushSends()
	l.vi.reap()
	return l.vi.sends.used() == 0
}

// poll, see loadPort. The receive that takes the place of the one that is done
// has another place for its message, and is posted with others: with a list's worth
// missing there are still more receives posted than a window.
func (l *viLoad) poll() []byte {
	v := l.vi
	if len(v.taken) == 0 {
		v.pushRecvs()
	}
	d, err := v.recvListed()
	if err == vipl.ErrNotDone {
		return nil
	}
	if err != nil {
		v.fail("receive", d, err)
	}
	v.recvs.done++
	if d.SegCount != 1 {
		fail.With("receive: a descriptor without a place for data came back")
	}
	at := int(d.Segment(0).Data - v.in.Addr())
	l.stageRecv()
	return v.in.Bytes()[at : at+int(d.Length)]
}

func (l *viLoad) window() int { return LoadWindow }
