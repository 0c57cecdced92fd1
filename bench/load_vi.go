package bench

import (
	"errors"
	"fmt"

	"viaxdp/vipl"
)

// viLoad is a VI under load. Every descriptor has a place of its own for its
// message. What is due together is posted as lists of up to viList, with a doorbell
// for each, where TCP sends it with one system call, and taken off so. On a reliable
// VI no more messages are under way than there are receives posted at the peer; on
// an unreliable one they are lost then.
//
// Receives stay posted from one round to the next: a VI that has carried a load
// carries nothing else afterwards.
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
	if l.lossy() {
		// Messages that meet no receive are counted, not logged one by one.
		v.nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	}
	if err := v.word(wordReady | int(r.ID)); err != nil {
		return err
	}
	for {
		d, err := v.recv()
		if err != nil {
			return err
		}
		got, ok := d.Immediate()
		switch {
		case ok && got == uint32(wordReady|int(r.ID)):
			v.lists = v.list(viList)
			return nil
		case ok || !l.lossy():
			return fmt.Errorf("the peer began with %d bytes and %#x, not with round %d", d.Length, got, r.ID)
		}
		// The last word of a round is said again where it may be lost, and may
		// come twice.
		if err := l.postRecv(); err != nil {
			return err
		}
	}
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

func (l *viLoad) window() int {
	if l.lossy() {
		return 0
	}
	return LoadWindow
}

func (l *viLoad) lossy() bool { return l.vi.level == vipl.UnreliableDelivery }
