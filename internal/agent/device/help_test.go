package device

import (
	"context"
	"os"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// waitLimit is how long a test waits for what must happen.
const waitLimit = time.Minute

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func testOffer(vi uint32) kagent.Offer {
	return kagent.Offer{VI: vi, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: 64, MaxPayload: 1472, Level: 4, RDMARead: true, MaxTransfer: 1 << 15, PortOffset: 5}
}

// quickNeighbours makes the kernel give up on a silent neighbour after 60 ms
// instead of 3 s.
func quickNeighbours(t *testing.T, n *nstest.NS) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		file := "/proc/sys/net/" + family + "/neigh/" + n.Name + "/retrans_time_ms"
		nstest.Must(t, n.Do(func() error { return os.WriteFile(file, []byte("20"), 0) }))
	}
}
