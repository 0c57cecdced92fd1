package vipl_test

import (
	"fmt"
	"log"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// A client sends 64 bytes and waits for the answer.
func Example() {
	nic, err := vipl.OpenNIC("eth1")
	if err != nil {
		log.Fatal(err) // names what is missing, and the remedy
	}
	defer nic.Close()
	tag, err := nic.CreatePtag()
	if err != nil {
		log.Fatal(err)
	}
	mem, err := nic.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		log.Fatal(err)
	}
	vi, err := nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	if err != nil {
		log.Fatal(err)
	}

	// Two descriptors and their data, all in registered memory.
	send, _ := mem.Descriptor(0, 1)
	send.SetSegments(mem.Segment(1024, 64))
	recv, _ := mem.Descriptor(64, 1)
	recv.SetSegments(mem.Segment(2048, 64))

	// The receive first: the answer must find it posted.
	if err := vi.PostRecv(recv, mem.Handle()); err != nil {
		log.Fatal(err)
	}
	server := vipl.NetAddress{Host: netip.MustParseAddr("10.0.0.2"), Discriminator: []byte("echo")}
	if _, err := vi.ConnectRequest(vipl.NetAddress{}, server, time.Second); err != nil {
		log.Fatal(err)
	}
	defer vi.Disconnect()
	if err := vi.PostSend(send, mem.Handle()); err != nil {
		log.Fatal(err)
	}
	d, err := vi.RecvWait(time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Length, "bytes came back")
}
