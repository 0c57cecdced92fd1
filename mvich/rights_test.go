package mvich_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"viaxdp/mvich"
	"viaxdp/vipl"
)

// Protocols in offers.
const offerRGET, offerRPUT = uint32(mvich.RGET), uint32(mvich.RPUT)

// remoteOf is the memory that a request or ready packet offers.
func remoteOf(b []byte) vipl.AddressSegment {
	return vipl.AddressSegment{
		Data: binary.LittleEndian.Uint64(b[32:]), Handle: vipl.MemHandle(binary.LittleEndian.Uint32(b[40:])),
	}
}

// move reads n bytes of the other side's memory, or writes them.
func (s *stranger) move(at vipl.AddressSegment, n int, write bool) ([]byte, error) {
	s.t.Helper()
	const off = strangerRDMA
	d, err := s.region.Descriptor(off, 2)
	if err != nil {
		s.t.Fatal(err)
	}
	ours := s.region.Segment(off+64, n)
	if write {
		for i := range n {
			s.region.Bytes()[off+64+i] = 'w'
		}
		d.SetRDMAWrite(at, ours)
	} else {
		d.SetRDMARead(at, ours)
	}
	if err := s.vi.PostSend(d, s.region.Handle()); err != nil {
		return nil, err
	}
	for {
		done, err := s.vi.SendWait(ackDelay)
		if done != d && err == nil {
			s.done++
			continue
		}
		if done == d || err != nil {
			return s.region.Bytes()[off+64 : off+64+n], err
		}
	}
}

// What a rank has sent by RGET is the program's alone again when the send is done: the peer reads nothing that the
// program writes there later.
func TestReadAfterSend(t *testing.T) {
	w, s := newStranger(t, 2, mvich.WithProtocol(mvich.RGET))
	const size = 20000
	b := make([]byte, size)
	var at vipl.AddressSegment
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return mvich.Send(w.Comm(), b, 1, 0)
		}
		s.grant(32)
		request, number := s.await(pktRequest)
		at = remoteOf(request)
		if _, err := s.move(at, size/2, false); err != nil {
			return fmt.Errorf("while the message is being sent: %w", err)
		}
		s.send(packetOf(pktDone, 0, 0, 0, number, nil))
		return nil
	})
	copy(b, "secret")
	if got, err := s.move(at, 6, false); !errors.Is(err, vipl.ErrDescriptor) {
		t.Errorf("when the send was done it has read %q, %v", got, err)
	}
}

// Nor does a peer write where a message has been received by RPUT; and what it may do there ends with its own
// message, not with that of another rank or the last one of all.
func TestWriteAfterReceive(t *testing.T) {
	w, s := newStranger(t, 2)
	const size = 20000
	b := make([]byte, 2*size)
	var at [2]vipl.AddressSegment
	var number [2]uint32
	var receives [2]*mvich.Request
	for i := range receives {
		var err error
		// The second one, which is part of the first one's memory, is found in it.
		if receives[i], err = w.Comm().Irecv(b[i*size:], 1, i); err != nil {
			t.Fatal(err)
		}
	}
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return errOf(receives[0].Wait())
		}
		for i := range at {
			credits := uint16(32 * (1 - i))
			s.send(within(packetOf(pktRequest, credits, size*uint64(2-i), 1, 0, offerOf(offerRPUT)), ofMessages, uint32(i)))
			var ready []byte
			ready, number[i] = s.await(pktReady)
			at[i] = remoteOf(ready)
		}
		s.send(packetOf(pktFinish, 0, 0, 0, number[0], nil))
		return nil
	})
	each(t, 2, func(rank int) error {
		if rank == 0 {
			return errOf(receives[1].Wait())
		}
		if _, err := s.move(at[1], size, true); err != nil {
			return fmt.Errorf("while the second message is being received: %w", err)
		}
		s.send(packetOf(pktFinish, 0, 0, 0, number[1], nil))
		return nil
	})
	clear(b)
	if _, err := s.move(at[1], 6, true); err == nil {
		// It is done for this side when it is acknowledged, at the least.
		if bytes.Contains(b, []byte("w")) {
			t.Error("it has written when the receive was done")
		}
	}
	if _, err := s.move(at[1], 6, true); err == nil {
		t.Error("the connection works after a write to memory that it may not write")
	}
	if bytes.Contains(b, []byte("w")) {
		t.Error("it has written when the receive was done")
	}
}
