package xdpnic_test

import (
	"log"

	"viaxdp/xdpnic"
)

// An echo on queue 0 of interface 2. The XDP program that sends frames to the
// socket is not shown; register stands for its XSKMAP.
func Example() {
	register := func(slot, fd int) error { return nil }

	q, err := xdpnic.Open(xdpnic.Config{Ifindex: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	if err := register(0, q.FD()); err != nil {
		log.Fatal(err)
	}

	var frames [32]xdpnic.Frame
	for {
		if err := q.Wait(-1); err != nil {
			log.Fatal(err)
		}
		for _, f := range frames[:q.Receive(frames[:])] {
			if addr, buf, ok := q.Alloc(); ok {
				n := copy(buf, f.Data)
				copy(buf[0:6], f.Data[6:12]) // back to where it came from
				copy(buf[6:12], f.Data[0:6])
				if !q.Send(addr, n, false) {
					q.Release(addr)
				}
			}
			q.Recycle(f.Addr)
		}
		q.Refill()
		if err := q.Flush(); err != nil {
			log.Fatal(err)
		}
	}
}
