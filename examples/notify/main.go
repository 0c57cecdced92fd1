// Command notify receives messages without a loop that polls or waits. It shows
// handlers: one for a completed receive, which serves one completion and registers
// itself again, and one for asynchronous errors, which reports why a connection ended.
// Both are called on goroutines of the library.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/notify -i via0 &
//	ip netns exec via1 go run ./examples/notify -i via1 -connect 10.77.0.1
package main

import (
	"fmt"

	"viaxdp/examples/internal/side"
	"viaxdp/vipl"
)

const (
	receives = 8  // no fewer than the peer sends in a row
	size     = 64 // bytes of the longest message
)

var messages = []string{"first", "second", "third", "fourth", "fifth", "last"}

func main() { side.Main("notify", run) }

func run(s *side.Side) error {
	mem, err := s.NIC.AllocMem(4096, vipl.MemAttributes{Ptag: s.Tag})
	if err != nil {
		return err
	}
	vi, err := s.NIC.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: s.Tag}, nil, nil)
	if err != nil {
		return err
	}
	if !s.Server {
		return send(s, vi, mem)
	}
	lost := make(chan vipl.ErrorDescriptor, 16)
	s.NIC.ErrorCallback(func(e vipl.ErrorDescriptor) { lost <- e })
	ended := make(chan error, 1)
	if err := vi.RecvNotify(handler(mem, ended)); err != nil {
		return err
	}
	for i := range receives {
		d, err := mem.Descriptor(i*64, 1)
		if err != nil {
			return err
		}
		d.SetSegments(mem.Segment(2048+i*size, size))
		if err := vi.PostRecv(d, mem.Handle()); err != nil {
			return err
		}
	}
	if err := s.Connect(vi); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return err
	}
	e := <-lost
	fmt.Printf("%v: %v\n", e.Code, e.Err)
	return nil
}

// handler prints the message that a receive holds, posts it again, and sets
// itself for the next one.
func handler(mem *vipl.Region, ended chan<- error) func(*vipl.VI, *vipl.Descriptor) {
	var handle func(*vipl.VI, *vipl.Descriptor)
	handle = func(vi *vipl.VI, d *vipl.Descriptor) {
		if d.Status().Failed() { // flushed: the client has left
			ended <- nil
			return
		}
		at := d.Segment(0).Data - mem.Addr()
		fmt.Printf("%s\n", mem.Bytes()[at:at+uint64(d.Length)])
		err := vi.PostRecv(d, mem.Handle())
		if err == nil {
			err = vi.RecvNotify(handle)
		}
		if err != nil {
			ended <- err
		}
	}
	return handle
}

// send sends the messages, each one as soon as the last one was handed over.
func send(s *side.Side, vi *vipl.VI, mem *vipl.Region) error {
	d, err := mem.Descriptor(0, 1)
	if err != nil {
		return err
	}
	if err := s.Connect(vi); err != nil {
		return err
	}
	for _, text := range messages {
		n := copy(mem.Bytes()[2048:2048+size], text)
		d.SetSegments(mem.Segment(2048, n))
		if err := vi.PostSend(d, mem.Handle()); err != nil {
			return err
		}
		if _, err := vi.SendWait(side.WaitLimit); err != nil {
			return err
		}
	}
	fmt.Println(len(messages), "messages sent")
	return nil
}
