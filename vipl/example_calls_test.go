package vipl_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"time"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// exampleEnd is one of two programs that exchange messages.
type exampleEnd struct {
	nic *vipl.NIC
	tag *vipl.Ptag
	vi  *vipl.VI     // connected with the other program's
	mem *vipl.Region // 16 KiB, which the other program may write
}

// examplePrograms runs f as two programs, on NICs in memory.
func examplePrograms(f func(a, b exampleEnd) error) {
	var example memorynic.Example
	defer example.End()
	if err := tryPrograms(&example, f); err != nil {
		fmt.Println(err)
	}
}

func tryPrograms(example *memorynic.Example, f func(a, b exampleEnd) error) error {
	wire := xdpnictest.NewWire()
	example.Cleanup(wire.Close)
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	var ends [2]exampleEnd
	for i := range ends {
		nic := memorynic.Open(example, wire, fabric.Agent(fmt.Sprint("host", i)), memorynic.Config{}).NIC
		tag, err := nic.CreatePtag()
		if err != nil {
			return err
		}
		mem, err := nic.AllocMem(16<<10, vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true})
		if err != nil {
			return err
		}
		vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag, EnableRDMAWrite: true}, nil, nil)
		if err != nil {
			return err
		}
		ends[i] = exampleEnd{nic, tag, vi, mem}
	}
	if err := exampleConnect(ends[0].vi, ends[1].vi); err != nil {
		return err
	}
	return f(ends[0], ends[1])
}

// exampleConnect connects the VIs of two programs: b is the server's.
func exampleConnect(a, b *vipl.VI) error {
	at := vipl.NetAddress{Host: b.NIC().Query().Address, Discriminator: []byte("example")}
	listener, err := b.NIC().Listen(at)
	if err != nil {
		return err
	}
	defer listener.Close()
	accepted := make(chan error, 1)
	go func() {
		request, err := listener.Wait(context.Background())
		if err == nil {
			err = request.Accept(b)
		}
		accepted <- err
	}()
	_, err = a.ConnectRequest(vipl.NetAddress{}, at, time.Minute)
	return errors.Join(err, <-accepted)
}

// Several descriptors are posted under one lock and with one doorbell.
func ExampleVI_PostSends() {
	examplePrograms(func(a, b exampleEnd) error {
		words := []string{"one", "two", "three"}
		var recvs, sends []*vipl.Descriptor
		for i, word := range words {
			recv, err := b.mem.Descriptor(i*64, 1)
			if err != nil {
				return err
			}
			recv.SetSegments(b.mem.Segment(4096+i*64, 64))
			recvs = append(recvs, recv)

			send, err := a.mem.Descriptor(i*64, 1)
			if err != nil {
				return err
			}
			n := copy(a.mem.Bytes()[4096+i*64:], word)
			send.SetSegments(a.mem.Segment(4096+i*64, n))
			sends = append(sends, send)
		}
		if n, err := b.vi.PostRecvs(recvs, b.mem.Handle()); err != nil {
			return fmt.Errorf("receive %d: %w", n, err)
		}
		if n, err := a.vi.PostSends(sends, a.mem.Handle()); err != nil {
			return fmt.Errorf("send %d: %w", n, err)
		}
		for range words {
			d, err := b.vi.RecvWait(time.Minute)
			if err != nil {
				return err
			}
			at := d.Segment(0).Data - b.mem.Addr()
			fmt.Printf("%s\n", b.mem.Bytes()[at:at+uint64(d.Length)])
		}
		return nil
	})
	// Output:
	// one
	// two
	// three
}

// One goroutine waits for many VIs, whose receive queues are bound to one completion queue. The program's data
// for each VI is stored with the VI.
func ExampleCQ_Wait() {
	examplePrograms(func(a, b exampleEnd) error {
		cq, err := b.nic.CreateCQ(64)
		if err != nil {
			return err
		}
		for i, name := range []string{"first", "second"} {
			attributes := vipl.VIAttributes{Level: vipl.ReliableDelivery}
			client, err := a.nic.CreateVI(attributes, nil, nil)
			if err != nil {
				return err
			}
			server, err := b.nic.CreateVI(attributes, nil, cq)
			if err != nil {
				return err
			}
			server.SetValue(name + " client")
			recv, err := b.mem.Descriptor(i*64, 0)
			if err != nil {
				return err
			}
			if err := server.PostRecv(recv, b.mem.Handle()); err != nil {
				return err
			}
			if err := exampleConnect(client, server); err != nil {
				return err
			}
			send, err := a.mem.Descriptor(i*64, 0)
			if err != nil {
				return err
			}
			send.SetImmediate(uint32(i + 1)) // a message without data
			if err := client.PostSend(send, a.mem.Handle()); err != nil {
				return err
			}

			vi, _, err := cq.Wait(time.Minute) // of whichever VI
			if err != nil {
				return err
			}
			d, err := vi.RecvDone()
			if err != nil {
				return err
			}
			v, _ := d.Immediate()
			fmt.Println(vi.Value(), "says", v)
		}
		return nil
	})
	// Output:
	// first client says 1
	// second client says 2
}

// A program writes to the memory of another one. Immediate data consumes a receive there, and so signals that
// everything has been written.
func ExampleDescriptor_SetRDMAWrite() {
	examplePrograms(func(a, b exampleEnd) error {
		recv, err := b.mem.Descriptor(0, 0)
		if err != nil {
			return err
		}
		if err := b.vi.PostRecv(recv, b.mem.Handle()); err != nil {
			return err
		}
		remote := b.mem.Remote(8192) // b sends it to a in a message

		write, err := a.mem.Descriptor(0, 2) // an address segment, a data segment
		if err != nil {
			return err
		}
		n := copy(a.mem.Bytes()[4096:], "written from afar")
		write.SetRDMAWrite(remote, a.mem.Segment(4096, n))
		write.SetImmediate(uint32(n))
		if err := a.vi.PostSend(write, a.mem.Handle()); err != nil {
			return err
		}

		d, err := b.vi.RecvWait(time.Minute)
		if err != nil {
			return err
		}
		length, _ := d.Immediate()
		fmt.Printf("%s\n", b.mem.Bytes()[8192:8192+length])
		return nil
	})
	// Output: written from afar
}

// A handler is called for one completion. What it has to do for the next one, it does
// itself.
func ExampleVI_RecvNotify() {
	examplePrograms(func(a, b exampleEnd) error {
		recv, err := b.mem.Descriptor(0, 1)
		if err != nil {
			return err
		}
		recv.SetSegments(b.mem.Segment(4096, 64))
		if err := b.vi.PostRecv(recv, b.mem.Handle()); err != nil {
			return err
		}
		called := make(chan struct{})
		err = b.vi.RecvNotify(func(vi *vipl.VI, d *vipl.Descriptor) {
			fmt.Printf("%d bytes: %s\n", d.Length, b.mem.Bytes()[4096:4096+d.Length])
			close(called)
		})
		if err != nil {
			return err
		}
		send, err := a.mem.Descriptor(0, 1)
		if err != nil {
			return err
		}
		n := copy(a.mem.Bytes()[4096:], "hello")
		send.SetSegments(a.mem.Segment(4096, n))
		if err := a.vi.PostSend(send, a.mem.Handle()); err != nil {
			return err
		}
		<-called
		return nil
	})
	// Output: 5 bytes: hello
}

// Every error matches a VIPL return code; an OpError has more details.
func ExampleOpError() {
	examplePrograms(func(a, _ exampleEnd) error {
		_, err := a.nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1 << 30}, nil, nil)
		if errors.Is(err, vipl.ErrInvalidMTU) {
			fmt.Println("too long a message")
		}
		var op *vipl.OpError
		if errors.As(err, &op) {
			fmt.Println(op.Op, "failed:", op.Err)
		}
		return nil
	})
	// Output:
	// too long a message
	// CreateVI failed: 1073741824 bytes, at most 1048576
}

// Two programs with different keys do not get connected.
func ExampleNewPSK() {
	examplePrograms(func(a, b exampleEnd) error {
		var vis []*vipl.VI
		for _, nic := range []*vipl.NIC{a.nic, b.nic} {
			key := make([]byte, 32)
			if _, err := rand.Read(key); err != nil {
				return err
			}
			psk, err := vipl.NewPSK(key)
			if err != nil {
				return err
			}
			vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, PSK: psk}, nil, nil)
			if err != nil {
				return err
			}
			vis = append(vis, vi)
		}
		err := exampleConnect(vis[0], vis[1])
		fmt.Println(errors.Is(err, vipl.ErrRejected), errors.Is(err, vipl.ErrSecurity))
		return nil
	})
	// Output: true true
}

// A server accepts clients as they arrive. Each gets a VI of its own.
func ExampleNIC_Listen() {
	nic, err := vipl.OpenNIC("eth1")
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	listener, err := nic.Listen(vipl.NetAddress{Discriminator: []byte("echo")})
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()
	for {
		request, err := listener.Wait(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		want := request.RemoteAttributes()
		vi, err := nic.CreateVI(vipl.VIAttributes{Level: want.Level, MaxTransferSize: want.MaxTransferSize}, nil, nil)
		if err != nil {
			log.Print(err)
			request.Reject()
			continue
		}
		// Here receives are posted: the client may send as soon as it is connected.
		if err := request.Accept(vi); err != nil {
			log.Print(request.Remote().Host, ": ", err)
			vi.Destroy()
		}
	}
}
