// Command stream sends 256 MiB in messages of 64 KiB and prints the rate. It shows flow
// control: VIA has none of its own, so the receiver grants a credit with an empty message
// when it has posted receives again. Both sides sleep while they wait.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/stream -i via0 &
//	ip netns exec via1 go run ./examples/stream -i via1 -connect 10.77.0.1
package main

import (
	"fmt"
	"time"

	"viaxdp/examples/internal/side"
	"viaxdp/vipl"
)

const (
	size     = 64 << 10 // bytes of a message
	messages = 4096
	window   = 16 // messages under way: as many receives are posted
	batch    = 4  // messages for each credit
)

func main() { side.Main("stream", run) }

func run(s *side.Side) error {
	// Descriptors of 64 bytes for messages, as many for credits, and the data.
	const credits, data = window * 64, 2 * window * 64
	mem, err := s.NIC.AllocMem(data+window*size, vipl.MemAttributes{Ptag: s.Tag})
	if err != nil {
		return err
	}
	vi, err := s.NIC.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: s.Tag}, nil, nil)
	if err != nil {
		return err
	}
	var message, credit [window]*vipl.Descriptor
	for i := range window {
		if message[i], err = mem.Descriptor(i*64, 1); err != nil {
			return err
		}
		message[i].SetSegments(mem.Segment(data+i*size, size))
		if credit[i], err = mem.Descriptor(credits+i*64, 0); err != nil {
			return err
		}
	}
	comes := credit
	if s.Server {
		comes = message
	}
	for _, d := range comes {
		if err := vi.PostRecv(d, mem.Handle()); err != nil {
			return err
		}
	}
	if err := s.Connect(vi); err != nil {
		return err
	}
	if s.Server {
		return receive(vi, mem, credit[0])
	}
	return send(vi, mem, message)
}

// send streams. Each credit means that batch more messages have a receive.
func send(vi *vipl.VI, mem *vipl.Region, message [window]*vipl.Descriptor) error {
	start := time.Now()
	for i := range messages + window {
		if i >= window && i%batch == 0 {
			d, err := vi.RecvWait(side.WaitLimit)
			if err != nil {
				return err
			}
			if err := vi.PostRecv(d, mem.Handle()); err != nil {
				return err
			}
			for range batch { // then their descriptors may be used again
				if _, err := vi.SendWait(side.WaitLimit); err != nil {
					return err
				}
			}
		}
		if i < messages {
			if err := vi.PostSend(message[i%window], mem.Handle()); err != nil {
				return err
			}
		}
	}
	took := time.Since(start)
	fmt.Printf("%d messages of %d bytes in %v, %.0f MB/s\n", messages, size, took, messages*size/took.Seconds()/1e6)
	return nil
}

// receive posts each receive again, and grants a credit after each batch of them.
func receive(vi *vipl.VI, mem *vipl.Region, credit *vipl.Descriptor) error {
	for i := range messages {
		d, err := vi.RecvWait(side.WaitLimit)
		if err != nil {
			return err
		}
		// Here a program would use the data, before it posts again.
		if err := vi.PostRecv(d, mem.Handle()); err != nil {
			return err
		}
		if (i+1)%batch != 0 {
			continue
		}
		if err := vi.PostSend(credit, mem.Handle()); err != nil {
			return err
		}
		if _, err := vi.SendWait(side.WaitLimit); err != nil {
			return err
		}
	}
	fmt.Printf("%d messages of %d bytes came\n", messages, size)
	return nil
}
