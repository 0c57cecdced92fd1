package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// The test program is also what is killed: a proxy, or a server.
const (
	asProxy  = "proxy-victim"
	asServer = "server-victim"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asProxy: proxyVictim, asServer: serverVictim})
}

// silence is the silence of hosts whose proxy is killed. The tests tolerate that a live host is taken for dead on a
// busy machine.
const silence = 2 * time.Second

// proxyVictim is a proxy between the addresses that its arguments are, one by VIA.
func proxyVictim() error {
	nic, err := vipl.OpenNIC("via0", vipl.WithSilence(silence))
	if err != nil {
		return err
	}
	p := &Proxy{}
	if p.Stack, err = vianet.New(nic, vianet.Options{}); err != nil {
		return err
	}
	var errs [2]error
	p.Listen, errs[0] = ParseAddress(os.Args[2])
	p.To, errs[1] = ParseAddress(os.Args[3])
	if err := errors.Join(errs[0], errs[1], p.Open()); err != nil {
		return err
	}
	fmt.Println(p.Addr())
	nstest.EndWithTest()
	return p.Serve(context.Background())
}

// serverVictim is a server of HTTP at the address that its argument is.
func serverVictim() error {
	l, err := net.Listen("tcp", os.Args[2])
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	nstest.EndWithTest()
	return http.Serve(l, newWeb(1<<20))
}

// place is a namespace.
type place interface{ Do(func() error) error }

// here is the namespace of the test.
type here struct{}

func (here) Do(f func() error) error { return f() }

// fails has curl fetch something, interrupts that, and checks curl's exit status.
func fails(t *testing.T, ns place, url string, status int, kill func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "part")
	var said strings.Builder
	var cmd *exec.Cmd
	var over chan error
	// If a live host is taken for dead, the transfer starts again.
	await.Until(t, "curl gets something", func() bool {
		if cmd == nil {
			os.Remove(file)
			said.Reset()
			cmd, over = curl(t, "--http1.0", "-N", "-o", file, url), make(chan error, 1)
			cmd.Stderr = &said
			must(t, ns.Do(cmd.Start))
			wait, over := cmd.Wait, over
			go func() { over <- wait() }()
		}
		select {
		case err := <-over:
			nstest.FatalIf(t, err == nil, "curl takes a part for the whole")
			cmd = nil
			return false
		default:
		}
		i, err := os.Stat(file)
		return err == nil && i.Size() > 0
	})
	kill()
	var exit *exec.ExitError
	if err := <-over; !errors.As(err, &exit) || exit.ExitCode() != status {
		t.Errorf("curl ends with %v, want exit status %d: %s", err, status, said.String())
	}
}

// Exit statuses of curl.
const (
	curlPart    = 18 // it got less than announced
	curlReceive = 56 // the connection broke
)

// nothingLeft waits until a proxy of this process, and its NIC, have no connection.
func nothingLeft(t *testing.T, nics ...*vipl.NIC) {
	t.Helper()
	all := make([]byte, 1<<20)
	await.Until(t, "no connection is forwarded", func() bool {
		return !strings.Contains(string(all[:runtime.Stack(all, true)]), ").forward(")
	})
	for _, nic := range nics {
		await.Until(t, "no VI is left", func() bool { return len(nic.Status().VIs) == 0 })
	}
}

// again has curl fetch something whole.
func again(t *testing.T, ns place, at string) {
	t.Helper()
	file, want := filepath.Join(t.TempDir(), "again"), random(1<<20, 0)
	await.Succeeds(t, "curl", func() error {
		cmd := curl(t, "-o", file, fmt.Sprintf("http://%s/%d", at, len(want)))
		return errors.Join(ns.Do(cmd.Start), cmd.Wait())
	})
	holds(t, file, want)
}

// listenIn runs a server in a namespace.
func listenIn(t *testing.T, ns place, handler http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = nstest.In(t, ns, func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // also where the test has failed
	return server.Listener.Addr().String()
}

// hears waits until the server knows that its client has gone.
func hears(t *testing.T, site *web) {
	t.Helper()
	select {
	case <-site.gone:
	case <-time.After(waitLimit):
		t.Fatal("the server goes on for a client that is gone")
	}
}

// The proxy of the client's host is killed. curl learns that it has only a part, although an answer without a length
// ends with the connection, and the server learns that its client is gone. Another proxy takes over.
func TestNearProxyDies(t *testing.T) {
	need(t, "curl", "curl")
	na, nb := nstest.Pair(t, nstest.Options{})
	noLeaks(t)
	site := newWeb(1 << 20)
	server := httptest.NewServer(site)
	defer server.Close()
	defer server.CloseClientConnections() // also where the test has failed
	b, nic := open(t, nb, silence)
	port := far(t, b, server.Listener.Addr().String())
	args := []string{asProxy, "tcp:127.0.0.1:0", "via:" + net.JoinHostPort(nb.IPv4.String(), port)}
	near, at := nstest.Spawn(t, na.Do, args...)
	fails(t, na, "http://"+at+"/endless", curlReceive, func() { near.Process.Kill() })
	hears(t, site)
	nothingLeft(t, nic)
	near.Wait() // the interface is free
	_, at = nstest.Spawn(t, na.Do, args...)
	again(t, na, at)
}

// The proxy of the server's host is killed.
func TestFarProxyDies(t *testing.T) {
	need(t, "curl", "curl")
	na, nb := nstest.Pair(t, nstest.Options{})
	noLeaks(t)
	site := newWeb(1 << 20)
	server := listenIn(t, nb, site)
	args := []string{asProxy, "via::7000", "tcp:" + server}
	far, _ := nstest.Spawn(t, nb.Do, args...)
	a, nic := open(t, na, silence)
	at := near(t, a, nb, "7000").String()
	fails(t, here{}, "http://"+at+"/endless", curlReceive, func() { far.Process.Kill() })
	hears(t, site)
	nothingLeft(t, nic)
	far.Wait()
	nstest.Spawn(t, nb.Do, args...)
	again(t, here{}, at)
}

// The server is killed, while curl gets something and while it puts something there.
func TestServerDies(t *testing.T) {
	need(t, "curl", "curl")
	h := stacks(t)
	server, address := nstest.Spawn(t, here{}.Do, asServer, net.JoinHostPort(ownHost(), "0"))
	at := h.chain(t, address).String()
	fails(t, here{}, fmt.Sprintf("http://%s/half/%d", at, 1<<20), curlPart, func() { server.Process.Kill() })
	nothingLeft(t, h.nicA, h.nicB)
	server.Wait()

	server, _ = nstest.Spawn(t, here{}.Do, asServer, address)
	again(t, here{}, at)
	put := curl(t, "-T", "-", "http://"+at+"/up")
	in, err := put.StdinPipe()
	must(t, err)
	must(t, put.Start())
	for n, kill := 0, 10<<20; err == nil; n += 64 << 10 {
		if n == kill {
			server.Process.Kill()
		}
		_, err = in.Write(make([]byte, 64<<10)) // until curl has ended
	}
	if err := put.Wait(); err == nil {
		t.Error("curl has put all of what has no end")
	}
	nothingLeft(t, h.nicA, h.nicB)
}

// A TCP peer that resets the connection while data flows both ways has not ended its own stream: neither a client that dies
// during a download nor a server that dies during an upload.
func TestResetIsNoEnd(t *testing.T) {
	l := listen(t)
	at := stacks(t).chain(t, l.Addr().String())
	for _, dies := range []string{"client", "server"} {
		for range 10 {
			client := dial(t, at)
			must(t, nstest.Err(client.Write([]byte("hello"))))
			server := accept(t, l).(*net.TCPConn)
			must(t, nstest.Err(io.ReadFull(server, make([]byte, 5))))
			dead, other := client, server
			if dies == "server" {
				dead, other = server, client
			}
			fill(other)
			dead.SetLinger(0)
			dead.Close()
			if _, err := other.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the %s dies: %v, want a reset", dies, err)
			}
			other.Close()
		}
	}
}

// fill writes until nothing more is taken, so that the proxies' writes wait. Its own does not when it returns: it would get
// the error of a reset.
func fill(c net.Conn) {
	for err := error(nil); err == nil; {
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = c.Write(make([]byte, 64<<10))
	}
}
