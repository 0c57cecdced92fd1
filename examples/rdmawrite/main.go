// Command rdmawrite puts lines of text into the memory of another program,
// which does nothing meanwhile. It shows how memory is opened to the peer and
// how the peer learns where it is. Writes arrive in order, so that immediate
// data with the last one says that all are there.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/rdmawrite -i via0 &
//	ip netns exec via1 go run ./examples/rdmawrite -i via1 -connect 10.77.0.1
package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"viaxdp/examples/internal/side"
	"viaxdp/vipl"
)

var lines = []string{"one line,\n", "another line,\n", "and the last one\n"}

// Offsets in the memory of both sides.
const (
	sendAt, recvAt = 0, 64 // descriptors
	addressAt      = 128   // a message: where the server's text is
	textAt         = 1024
	memory         = 4096
)

func main() { side.Main("rdmawrite", run) }

func run(s *side.Side) error {
	// The memory must allow it, and the VI must.
	mem, err := s.NIC.AllocMem(memory, vipl.MemAttributes{Ptag: s.Tag, EnableRDMAWrite: true})
	if err != nil {
		return err
	}
	vi, err := s.NIC.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: s.Tag, EnableRDMAWrite: true,
	}, nil, nil)
	if err != nil {
		return err
	}
	send, errSend := mem.Descriptor(sendAt, 2) // an address segment and a data segment
	recv, errRecv := mem.Descriptor(recvAt, 1)
	if err := errors.Join(errSend, errRecv); err != nil {
		return err
	}
	address := mem.Segment(addressAt, binary.Size(vipl.AddressSegment{}))
	send.SetSegments(address)
	recv.SetSegments(address)
	if err := vi.PostRecv(recv, mem.Handle()); err != nil {
		return err
	}
	if err := s.Connect(vi); err != nil {
		return err
	}
	if s.Server {
		return serve(vi, mem, send)
	}
	return write(vi, mem, send)
}

// serve says where the text goes, and waits for the end of it.
func serve(vi *vipl.VI, mem *vipl.Region, d *vipl.Descriptor) error {
	if _, err := binary.Encode(mem.Bytes()[addressAt:], binary.BigEndian, mem.Remote(textAt)); err != nil {
		return err
	}
	if err := vi.PostSend(d, mem.Handle()); err != nil {
		return err
	}
	last, err := vi.RecvWait(side.WaitLimit) // a write without immediate data takes no receive
	if err != nil {
		return err
	}
	n, ok := last.Immediate()
	if !ok || n > memory-textAt {
		return errors.New("the client has not said how much it wrote")
	}
	fmt.Printf("%s", mem.Bytes()[textAt:textAt+n])
	return nil
}

// write learns where the text goes, and writes it there, line by line.
func write(vi *vipl.VI, mem *vipl.Region, d *vipl.Descriptor) error {
	if _, err := vi.RecvWait(side.WaitLimit); err != nil {
		return err
	}
	var remote vipl.AddressSegment
	if _, err := binary.Decode(mem.Bytes()[addressAt:], binary.BigEndian, &remote); err != nil {
		return err
	}
	total := 0
	for i, line := range lines {
		n := copy(mem.Bytes()[textAt:], line)
		d.SetRDMAWrite(remote, mem.Segment(textAt, n))
		remote.Data += uint64(n)
		if total += n; i == len(lines)-1 {
			d.SetImmediate(uint32(total))
		}
		if err := vi.PostSend(d, mem.Handle()); err != nil {
			return err
		}
		if _, err := vi.SendWait(side.WaitLimit); err != nil { // d and the text are free again
			return err
		}
	}
	fmt.Printf("%d bytes written\n", total)
	return nil
}
