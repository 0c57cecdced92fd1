package peers

import (
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// The test program is a server that tests start.
const asListener = "peers-listen"

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asListener: listenMain})
}

// listenMain listens at an address, "tcp4 127.0.0.1:5000", until it is killed;
// with another argument behind it does not heed SIGTERM.
func listenMain() error {
	if len(os.Args) > 4 {
		signal.Ignore(syscall.SIGTERM)
	}
	network, address := os.Args[2], os.Args[3]
	if network == "udp4" || network == "udp6" {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		defer c.Close()
	} else {
		l, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		defer l.Close()
	}
	return nstest.Forever()
}
