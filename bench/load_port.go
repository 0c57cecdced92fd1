package bench

import (
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

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

func (l *tcpLoad) begin(r loadRound) error {
	l.bytes = r.Bytes
	l.out, l.in = make([]byte, readBuffer), make([]byte, readBuffer)
	return nil
}

func (l *tcpLoad) next() []byte {
	if l.to+l.bytes > len(l.out) {
		return nil
	}
	return l.out[l.to:]
}

func (l *tcpLoad) commit(n int) error {
	l.to += n
	return nil
}

func (l *tcpLoad) flush() (bool, error) {
	for l.from < l.to {
		n, err := l.t.writeOnce(l.out[l.from:l.to])
		switch {
		case err == nil:
			l.from += n
		case err == errAgain:
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("send: %w", err)
		}
	}
	l.from, l.to = 0, 0
	return true, nil
}

func (l *tcpLoad) poll() ([]byte, error) {
	if l.got-l.at < l.bytes {
		l.got = copy(l.in, l.in[l.at:l.got])
		l.at = 0
		n, err := l.t.readOnce(l.in[l.got:])
		switch {
		case err == errAgain || errors.Is(err, unix.EINTR):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("receive: %w", err)
		case n == 0:
			return nil, fmt.Errorf("receive: %w", io.ErrUnexpectedEOF) // the peer has closed
		}
		if l.got += n; l.got < l.bytes {
			return nil, nil
		}
	}
	p := l.in[l.at : l.at+l.bytes]
	l.at += l.bytes
	return p, nil
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
func (l *viLoad) begin(r loadRound) error {
	v := l.vi
	if v.params.MaxBytes < MaxLoadBytes {
		return fmt.Errorf("opened for messages of %d bytes: a load needs %d", v.params.MaxBytes, MaxLoadBytes)
	}
	v.round = Round{ID: r.ID, Bytes: r.Bytes}
	v.lists = 1
	v.watch.progress()
	for v.recvs.out() < loadReceives+1 {
		if err := l.postRecv(); err != nil {
			return err
		}
	}
	if err := v.word(wordReady | int(r.ID)); err != nil {
		return err
	}
	if err := v.begun(r.ID); err != nil {
		return err
	}
	v.lists = v.list(viList)
	return nil
}

// placeOf is where the message of a ring's next descriptor lies.
func placeOf(r *ring) int { return (r.posted + r.staged) % loadPlaces * MaxLoadBytes }

func (l *viLoad) stageRecv() { l.vi.stageRecv(l.vi.in.Segment(placeOf(&l.vi.recvs), MaxLoadBytes)) }

func (l *viLoad) postRecv() error {
	l.stageRecv()
	return l.vi.pushRecvs()
}

func (l *viLoad) next() []byte {
	v := l.vi
	if v.sends.used() == loadPlaces {
		return nil
	}
	at := placeOf(&v.sends)
	return v.out.Bytes()[at : at+MaxLoadBytes]
}

func (l *viLoad) commit(n int) error {
	d := l.vi.sends.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(l.vi.out.Segment(placeOf(&l.vi.sends), n))
	return l.vi.post()
}

// flush, see loadPort: what is posted is on its way when it is complete.
func (l *viLoad) flush() (bool, error) {
	if err := errors.Join(l.vi.pushSends(), l.vi.reap()); err != nil {
		return false, err
	}
	return l.vi.sends.used() == 0, nil
}

// poll, see loadPort. The receive that takes the place of the one that is done
// has another place for its message, and is posted with others: with a list's worth
// missing there are still more receives posted than a window.
func (l *viLoad) poll() ([]byte, error) {
	v := l.vi
	if len(v.taken) == 0 {
		if err := v.pushRecvs(); err != nil {
			return nil, err
		}
	}
	d, err := v.recvListed()
	if err == vipl.ErrNotDone {
		return nil, nil
	}
	if err != nil {
		return nil, v.fail("receive", d, err)
	}
	v.recvs.done++
	if d.SegCount != 1 {
		return nil, errors.New("receive: a descriptor without a place for data came back")
	}
	at := int(d.Segment(0).Data - v.in.Addr())
	l.stageRecv()
	return v.in.Bytes()[at : at+int(d.Length)], nil
}

func (l *viLoad) window() int { return LoadWindow }
