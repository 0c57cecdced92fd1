package nstest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The pair carries kernel traffic, by IPv4 and IPv6. From Linux 6.8 on it does so at once: the kernel repeats a lost neighbour
// solicitation only after a second.
func TestPairCarriesUDP(t *testing.T) {
	const retransmission = time.Second
	took := retransmission
	for i := 0; i < 3 && took >= retransmission; i++ { // a starved machine may take long, too
		took = firstDatagrams(t)
	}
	var u unix.Utsname
	Must(t, unix.Uname(&u))
	var major, minor int
	Must(t, Err(fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)))
	ErrorIf(t, took >= retransmission && (major > 6 || major == 6 && minor >= 8), "the first datagrams took %v", took)
}

// firstDatagrams sends a datagram by IPv4 and one by IPv6 over a new pair, and returns how long both took.
func firstDatagrams(t *testing.T) time.Duration {
	t.Helper()
	a, b := Pair(t, Options{})
	began := time.Now()
	for _, addr := range []string{b.IPv4.String(), b.IPv6.String()} {
		server := In(t, b, func() (net.PacketConn, error) { return net.ListenPacket("udp", net.JoinHostPort(addr, "9999")) })
		defer server.Close()
		client := In(t, a, func() (net.Conn, error) { return net.Dial("udp", net.JoinHostPort(addr, "9999")) })
		defer client.Close()
		Must(t, Err(client.Write([]byte("hello"))))
		server.SetReadDeadline(time.Now().Add(5 * time.Second))
		buf := make([]byte, 16)
		if n, _, err := server.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" {
			t.Fatalf("%s: got %q, %v", addr, buf[:n], err)
		}
	}
	return time.Since(began)
}

// A program that is started by another one finds itself in the namespace.
func TestInside(t *testing.T) {
	a, b := Pair(t, Options{})
	for _, n := range []*NS{a, b} {
		out, err := exec.Command("sh", "-c", `"$@"`, "sh", n.Inside(t)[0], n.Inside(t)[1], "readlink", "/proc/self/ns/net").Output()
		Must(t, err)
		want := In(t, n, func() (string, error) { return os.Readlink("/proc/thread-self/ns/net") })
		Equal(t, "namespace", strings.TrimSpace(string(out)), want)
	}
}
