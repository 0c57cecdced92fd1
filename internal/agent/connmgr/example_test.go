package connmgr_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// A requester, up to the moment from which its VI may send. The order is the one in
// which no frame is lost, even on an unreliable VI.
func Example() {
	agent, err := device.Open(kagent.Config{Interface: "via0", Queue: kagent.AnyQueue})
	if err != nil {
		log.Fatal(err) // names what is missing, and the remedy
	}
	defer agent.Close()
	num, err := agent.NewVI()
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	peer := netip.MustParseAddr("10.0.0.2")
	path, err := agent.Path(ctx, netip.Addr{}, peer)
	if err != nil {
		log.Fatal(err)
	}
	offer := kagent.Offer{
		VI: num, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: 256,
		MaxPayload: uint16(wire.HeaderLen + wire.PayloadRoom(path.MTU, false, 0)), Level: 2, MaxTransfer: 1 << 20,
	}
	if err := agent.Enter(num, offer.Key, peer); err != nil {
		log.Fatal(err)
	}
	remote := kagent.Address{Host: peer, Disc: []byte("echo")}
	answer, err := agent.Request(ctx, kagent.Address{}, remote, offer)
	if err != nil {
		log.Fatal(err)
	}
	// Here the VI begins to take frames of answer.Offer.VI.
	if err := answer.Confirm(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("connected with VI %#x\n", answer.Offer.VI)
}
