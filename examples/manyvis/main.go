// Command manyvis connects 64 VIs between two programs. It shows how one completion
// queue serves all of them: its entries name the VI, so the program need not poll each.
// The server answers each message on the VI that it came on; the client counts the
// answers.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/manyvis -i via0 &
//	ip netns exec via1 go run ./examples/manyvis -i via1 -connect 10.77.0.1
package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"viaxdp/examples/internal/side"
	"viaxdp/vipl"
)

const vis = 64

// end is one VI with its memory: two descriptors and a message of 8 bytes each
// way.
type end struct {
	vi      *vipl.VI
	mem     *vipl.Region
	send    *vipl.Descriptor
	out, in []byte
}

func main() { side.Main("manyvis", run) }

func run(s *side.Side) error {
	cq, err := s.NIC.CreateCQ(vis)
	if err != nil {
		return err
	}
	ends := map[*vipl.VI]*end{}
	for range vis {
		e, err := open(s, cq)
		if err != nil {
			return err
		}
		ends[e.vi] = e
	}
	n := uint64(0)
	for _, e := range ends {
		if err := s.Connect(e.vi); err != nil {
			return err
		}
		if s.Server {
			continue
		}
		n++
		if err := e.say(n); err != nil {
			return err
		}
	}
	sum := uint64(0)
	for range vis {
		vi, _, err := cq.Wait(side.WaitLimit) // of one VI, and of its receive queue
		if err != nil {
			return err
		}
		if _, err := vi.RecvDone(); err != nil {
			return err
		}
		e := ends[vi]
		got := binary.BigEndian.Uint64(e.in)
		sum += got
		if !s.Server {
			continue
		}
		if err := e.say(got * got); err != nil {
			return err
		}
	}
	fmt.Printf("%d messages on as many VIs, the sum of them is %d\n", vis, sum)
	return nil
}

// open makes a VI with its receive posted. Receives complete on cq, sends on
// the VI itself.
func open(s *side.Side, cq *vipl.CQ) (*end, error) {
	mem, err := s.NIC.AllocMem(256, vipl.MemAttributes{Ptag: s.Tag})
	if err != nil {
		return nil, err
	}
	vi, err := s.NIC.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: s.Tag}, nil, cq)
	if err != nil {
		return nil, err
	}
	send, errSend := mem.Descriptor(0, 1)
	recv, errRecv := mem.Descriptor(64, 1)
	if err := errors.Join(errSend, errRecv); err != nil {
		return nil, err
	}
	send.SetSegments(mem.Segment(128, 8))
	recv.SetSegments(mem.Segment(192, 8))
	e := &end{vi: vi, mem: mem, send: send, out: mem.Bytes()[128:136], in: mem.Bytes()[192:200]}
	return e, vi.PostRecv(recv, mem.Handle())
}

// say sends a number.
func (e *end) say(n uint64) error {
	binary.BigEndian.PutUint64(e.out, n)
	if err := e.vi.PostSend(e.send, e.mem.Handle()); err != nil {
		return err
	}
	_, err := e.vi.SendWait(side.WaitLimit)
	return err
}
