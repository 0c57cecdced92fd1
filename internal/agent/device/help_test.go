package device

import (
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// waitLimit is how long a test waits for what must happen.
const waitLimit = time.Minute

// small keeps the tests' memory small.
func small(n *nstest.NS) Config {
	return Config{Config: kagent.Config{Interface: n.Name, ArenaBytes: 4 << 20, RxChunks: 256, TxChunks: 256}}
}

// native is small for a queue in native mode, and in no other.
func native(n *nstest.NS, queue int) Config {
	cfg := small(n)
	cfg.Mode, cfg.RequireMode, cfg.Queue = xdpnic.ModeNative, true, queue
	return cfg
}

func testOffer(vi uint32) kagent.Offer {
	return kagent.Offer{VI: vi, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: 64, MaxPayload: 1472, Level: 4, RDMARead: true, MaxTransfer: 1 << 15, PortOffset: 5}
}
