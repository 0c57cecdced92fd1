// Command pingpong sends a message there and back 10,000 times and prints how long one
// way took. It shows all steps of VIA: registered memory, descriptors in it, a receive
// posted before its message comes, and polling.
//
//	via-xdp testbed up
//	ip netns exec via0 go run ./examples/pingpong -i via0 &
//	ip netns exec via1 go run ./examples/pingpong -i via1 -connect 10.77.0.1
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

const (
	rounds = 10_000
	size   = 64 // bytes of a message
)

func main() {
	log.SetFlags(0)
	device := flag.String("i", "via0", "interface")
	server := flag.String("connect", "", "`address` of the server; without it, be the server")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("pingpong: %q is too much: -connect names the server", flag.Arg(0))
	}
	if err := run(*device, *server); err != nil {
		log.Fatal("pingpong: ", err)
	}
}

func run(device, server string) error {
	nic, err := vipl.OpenNIC(device)
	if err != nil {
		return err
	}
	defer nic.Close() // ends everything that is made of it
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	mem, err := nic.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		return err
	}
	vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	if err != nil {
		return err
	}
	// Two descriptors of 64 bytes, and the messages that they describe.
	send, errSend := mem.Descriptor(0, 1)
	recv, errRecv := mem.Descriptor(64, 1)
	if err := errors.Join(errSend, errRecv); err != nil {
		return err
	}
	send.SetSegments(mem.Segment(1024, size))
	recv.SetSegments(mem.Segment(2048, size))
	// A message that meets no receive breaks the connection.
	if err := vi.PostRecv(recv, mem.Handle()); err != nil {
		return err
	}
	if err := connect(nic, vi, server); err != nil {
		return err
	}

	start := time.Now()
	for range rounds {
		if server != "" { // the client begins
			if err := post(vi, send, mem); err != nil {
				return err
			}
		}
		if err := poll(vi.RecvDone); err != nil {
			return err
		}
		if err := vi.PostRecv(recv, mem.Handle()); err != nil {
			return err
		}
		if server == "" {
			if err := post(vi, send, mem); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d round trips of %d bytes, %v one way\n", rounds, size, time.Since(start)/(2*rounds))
	return nil
}

// post sends a message and waits until its descriptor may be used again.
func post(vi *vipl.VI, d *vipl.Descriptor, mem *vipl.Region) error {
	if err := vi.PostSend(d, mem.Handle()); err != nil {
		return err
	}
	return poll(vi.SendDone)
}

// poll waits for the next descriptor of a queue, without sleeping.
func poll(done func() (*vipl.Descriptor, error)) error {
	for {
		d, err := done()
		switch {
		case errors.Is(err, vipl.ErrNotDone):
			continue
		case err != nil && d != nil:
			return fmt.Errorf("%w: %v", err, d.Status())
		}
		return err
	}
}

// connect waits for a client, or connects with the server.
func connect(nic *vipl.NIC, vi *vipl.VI, server string) error {
	name := []byte("pingpong") // the discriminator: which program of the host
	if server == "" {
		fmt.Println("waiting for a client")
		request, err := nic.ConnectWait(vipl.NetAddress{Discriminator: name}, -1)
		if err != nil {
			return err
		}
		return request.Accept(vi)
	}
	host, err := netip.ParseAddr(server)
	if err != nil {
		return err
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err = vi.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: host, Discriminator: name}, 5*time.Second)
		// The server may not wait yet.
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(end) {
			return err
		}
	}
}
