// Command rdmaread looks up entries of a table in the memory of another
// program, which sleeps meanwhile. It shows several reads under way at once,
// and a fence: the message behind them leaves only when all of them are done,
// so that the server does not take its memory away too early.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/rdmaread -i via0 &
//	ip netns exec via1 go run ./examples/rdmaread -i via1 -connect 10.77.0.1
package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"viaxdp/examples/internal/side"
	"viaxdp/vipl"
)

const entries = 100_000 // squares, 8 bytes each

var wanted = []int{1, 12, 1234, 99_999}

// Offsets in the memory of both sides.
const (
	sendAt, recvAt = 0, 64 // descriptors
	readsAt        = 128   // descriptors of the reads
	addressAt      = 1024  // a message: where the table is
	tableAt        = 2048  // the server's table, or what the client has read
)

func main() { side.Main("rdmaread", run) }

func run(s *side.Side) error {
	// The memory must allow it, and the VIs of both sides must.
	mem, err := s.NIC.AllocMem(tableAt+8*entries, vipl.MemAttributes{Ptag: s.Tag, EnableRDMARead: s.Server})
	if err != nil {
		return err
	}
	vi, err := s.NIC.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: s.Tag, EnableRDMARead: true,
	}, nil, nil)
	if err != nil {
		return err
	}
	send, errSend := mem.Descriptor(sendAt, 1)
	recv, errRecv := mem.Descriptor(recvAt, 1)
	if err := errors.Join(errSend, errRecv); err != nil {
		return err
	}
	address := mem.Segment(addressAt, binary.Size(vipl.AddressSegment{}))
	recv.SetSegments(address)
	if err := vi.PostRecv(recv, mem.Handle()); err != nil {
		return err
	}
	if err := s.Connect(vi); err != nil {
		return err
	}
	if !s.Server {
		return read(vi, mem, send)
	}
	for i := range uint64(entries) {
		binary.BigEndian.PutUint64(mem.Bytes()[tableAt+8*i:], i*i)
	}
	if _, err := binary.Encode(mem.Bytes()[addressAt:], binary.BigEndian, mem.Remote(tableAt)); err != nil {
		return err
	}
	send.SetSegments(address)
	if err := vi.PostSend(send, mem.Handle()); err != nil {
		return err
	}
	if _, err := vi.RecvWait(side.WaitLimit); err != nil { // until the client is done
		return err
	}
	fmt.Println("the client has read what it wanted")
	return nil
}

// read learns where the table is, reads entries of it, and says that it is done.
func read(vi *vipl.VI, mem *vipl.Region, done *vipl.Descriptor) error {
	if _, err := vi.RecvWait(side.WaitLimit); err != nil {
		return err
	}
	var table vipl.AddressSegment
	if _, err := binary.Decode(mem.Bytes()[addressAt:], binary.BigEndian, &table); err != nil {
		return err
	}
	for i, n := range wanted {
		d, err := mem.Descriptor(readsAt+i*64, 2) // an address segment and a data segment
		if err != nil {
			return err
		}
		entry := table
		entry.Data += uint64(8 * n)
		d.SetRDMARead(entry, mem.Segment(tableAt+8*i, 8))
		if err := vi.PostSend(d, mem.Handle()); err != nil {
			return err
		}
	}
	done.Control |= vipl.ControlQFence
	if err := vi.PostSend(done, mem.Handle()); err != nil {
		return err
	}
	for i, n := range wanted { // they complete in the order in which they were posted
		if _, err := vi.SendWait(side.WaitLimit); err != nil {
			return err
		}
		fmt.Printf("%d squared is %d\n", n, binary.BigEndian.Uint64(mem.Bytes()[tableAt+8*i:]))
	}
	_, err := vi.SendWait(side.WaitLimit)
	return err
}
