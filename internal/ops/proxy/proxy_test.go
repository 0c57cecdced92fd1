package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// waitLimit is how long anything may take.
const waitLimit = time.Minute

var must, check = nstest.Must, nstest.Check

// hosts are both ends of a veth pair.
type hosts struct {
	na, nb     *nstest.NS
	a, b       *vianet.Stack
	nicA, nicB *vipl.NIC
}

// stacks opens both ends.
func stacks(t *testing.T) (h hosts) {
	t.Helper()
	h.na, h.nb = nstest.Pair(t, nstest.Options{})
	noLeaks(t)
	h.a, h.nicA = open(t, h.na, waitLimit/2)
	h.b, h.nicB = open(t, h.nb, waitLimit/2)
	return h
}

// connected is a connection by VIA between the hosts.
func (h hosts) connected(t *testing.T) (client net.Conn, server *vianet.Conn) {
	t.Helper()
	l, err := h.b.Listen("via", ":7000")
	must(t, err)
	defer l.Close()
	client, err = h.a.Dial("via", net.JoinHostPort(h.nb.IPv4.String(), "7000"))
	return using(t, client, err), accept(t, l).(*vianet.Conn)
}

// listen listens by TCP until the end of the test.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// serving has f serve each connection of a server by TCP.
func serving(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	return l.Addr().String()
}

// dial connects by TCP.
func dial(t *testing.T, to net.Addr) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", to.String())
	return using(t, c, err).(*net.TCPConn)
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	return using(t, c, err)
}

// using closes a connection at the end of the test. It limits the time that reads and writes take.
func using(t *testing.T, c net.Conn, err error) net.Conn {
	t.Helper()
	must(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(waitLimit))
	return c
}

// noLeaks checks at the end of the test that no goroutine of it is left.
func noLeaks(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
}

// open makes a stack over the interface of a namespace.
func open(t *testing.T, ns *nstest.NS, silence time.Duration) (*vianet.Stack, *vipl.NIC) {
	t.Helper()
	var nic *vipl.NIC
	must(t, ns.Do(func() (err error) {
		nic, err = vipl.OpenNIC(ns.Name, vipl.WithSilence(silence))
		return err
	}))
	s, err := vianet.New(nic, vianet.Options{})
	must(t, err)
	t.Cleanup(func() { check(t, errors.Join(s.Close(), nic.Close())) })
	return s, nic
}

// serve runs a proxy until the end of the test.
func serve(t *testing.T, p *Proxy) {
	t.Helper()
	p.Failed = func(err error) { t.Logf("not forwarded: %v", err) }
	must(t, p.Open())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-done)
	})
}

// chain is client -> TCP -> VIA -> TCP -> server, and the address for the client.
func (h hosts) chain(t *testing.T, server string) net.Addr {
	t.Helper()
	return near(t, h.a, h.nb, far(t, h.b, server))
}

// near serves a proxy from TCP to a port of a host by VIA, and returns its address.
func near(t *testing.T, a *vianet.Stack, host *nstest.NS, port string) net.Addr {
	t.Helper()
	p := &Proxy{Listen: Address{"tcp", "127.0.0.1:0"}, To: Address{"via", net.JoinHostPort(host.IPv4.String(), port)}, Stack: a}
	serve(t, p)
	return p.Addr()
}

// far serves a proxy from VIA to a server by TCP, and returns its port.
func far(t *testing.T, b *vianet.Stack, server string) string {
	t.Helper()
	p := &Proxy{Listen: Address{"via", ":0"}, To: Address{"tcp", server}, Stack: b}
	serve(t, p)
	_, port, err := net.SplitHostPort(p.Addr().String())
	must(t, err)
	return port
}

// Programs without support for VIA exchange data through two proxies, many at once, and each end of a stream closes
// separately.
func TestChain(t *testing.T) {
	at := stacks(t).chain(t, serving(t, func(c net.Conn) { // it answers when the client has said all
		all, _ := io.ReadAll(c)
		c.Write(all)
	}))
	var wait sync.WaitGroup
	for i, n := range slices.Repeat([]int{0, 1, 1000, 100_000, 3 << 20}, 3) {
		wait.Go(func() {
			c, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(waitLimit))
			want := random(n, byte(i))
			_, err = c.Write(want)
			if err = errors.Join(err, c.(*net.TCPConn).CloseWrite()); err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes: %d came, %v", n, len(got), err)
			}
		})
	}
	wait.Wait()
}

// ends runs a server, has say write to it through two proxies, and returns what the server and the client have read.
func ends(t *testing.T, say func(t *testing.T, c *net.TCPConn)) (got []byte, served, asked error) {
	t.Helper()
	l := listen(t)
	type end struct {
		got []byte
		err error
	}
	over, come := make(chan end, 1), make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			over <- end{nil, err}
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(waitLimit))
		first := make([]byte, 5)
		_, err = io.ReadFull(c, first)
		close(come)
		if err != nil {
			over <- end{nil, err}
			return
		}
		rest, err := io.ReadAll(c)
		over <- end{append(first, rest...), err}
	}()
	c := dial(t, stacks(t).chain(t, l.Addr().String()))
	must(t, nstest.Err(io.WriteString(c, "hello")))
	select {
	case <-come:
	case e := <-over:
		t.Fatalf("the server: %v", e.err)
	case <-time.After(waitLimit):
		t.Fatal("the server has not got the first bytes")
	}
	say(t, c)
	_, asked = c.Read(make([]byte, 1))
	e := <-over
	return e.got, e.err, asked
}

// The death of a client does not look like an orderly end of its stream to the server.
func TestBroken(t *testing.T) {
	got, served, _ := ends(t, func(t *testing.T, c *net.TCPConn) {
		c.SetLinger(0)
		c.Close()
	})
	nstest.ErrorIf(t, string(got) != "hello" || !errors.Is(served, syscall.ECONNRESET),
		"the server has read %q, %v", got, served)
	got, served, asked := ends(t, func(t *testing.T, c *net.TCPConn) { c.CloseWrite() })
	nstest.ErrorIf(t, string(got) != "hello" || served != nil || asked != io.EOF,
		"where all is said: the server has read %q, %v; the client %v", got, served, asked)
}

// The data of a client that has ended its stream and exited arrives to its end, even if the server ends its own
// stream before that.
func TestServerEndsFirst(t *testing.T) {
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		err2 := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		return errors.Join(err, err2)
	}}
	l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	h := stacks(t)
	client, err := h.a.Dial("via", net.JoinHostPort(h.nb.IPv4.String(), far(t, h.b, l.Addr().String())))
	said := random(150_000, 1) // more than the server's socket takes
	must(t, nstest.Err(using(t, client, err).Write(said)))
	server := accept(t, l)
	must(t, client.Close())
	time.Sleep(100 * time.Millisecond) // in which the proxy hears of it, and in which what is wrong would happen
	must(t, server.(*net.TCPConn).CloseWrite())
	time.Sleep(100 * time.Millisecond)
	if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, said) {
		t.Errorf("the server has read %d bytes of %d, %v", len(got), len(said), err)
	}
}

// toServer connects a client by TCP with a server by VIA, through a proxy.
func toServer(t *testing.T) (client, server net.Conn) {
	t.Helper()
	h := stacks(t)
	l, err := h.b.Listen("via", ":7000")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	client = dial(t, near(t, h.a, h.nb, "7000"))
	return client, accept(t, l)
}

// An answer that a VIA server has written before its Close arrives complete, even while the client still sends.
func TestAnswerDuringUpload(t *testing.T) {
	client, server := toServer(t)
	var upload sync.WaitGroup
	defer upload.Wait()
	defer client.Close()
	upload.Go(func() {
		for err := error(nil); err == nil; {
			_, err = client.Write(make([]byte, 10_000))
		}
	})
	answer, said := random(1<<25, 2), 0
	err := error(nil)
	for err == nil { // until the client, which does not read, has no room for more
		server.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		var n int
		n, err = server.Write(answer[said : said+1000])
		said += n
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	must(t, server.Close())
	time.Sleep(100 * time.Millisecond) // in which the proxy hears of it, and in which what is wrong would happen
	got := make([]byte, said)
	if n, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, answer[:said]) {
		t.Errorf("the client has read %d bytes of %d, %v", n, said, err)
	}
	if n, err := client.Read(got); n > 0 || err != io.EOF {
		t.Errorf("after the answer: %d bytes, %v", n, err)
	}
}

// So does an answer that has ended before the client sends, and of which most waits in the kernel for the client to read.
func TestAnswerBeforeUpload(t *testing.T) {
	client, server := toServer(t)
	answer := random(1<<20, 3)
	must(t, nstest.Err(server.Write(answer)))
	must(t, server.Close())
	for range 5 { // the first ones may go into buffers
		time.Sleep(50 * time.Millisecond) // in which the proxy takes the end of the answer, and these bytes
		must(t, nstest.Err(client.Write(make([]byte, 10_000))))
	}
	time.Sleep(50 * time.Millisecond) // in which what is wrong would happen
	if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("the client has read %d bytes of %d, %v", len(got), len(answer), err)
	}
}

// Urgent data is not lost silently: both sides see a reset.
func TestUrgent(t *testing.T) {
	got, served, asked := ends(t, func(t *testing.T, c *net.TCPConn) {
		raw, err := c.SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) }))
		must(t, err)
	})
	nstest.ErrorIf(t, string(got) != "hello" || !errors.Is(served, syscall.ECONNRESET) || !errors.Is(asked, syscall.ECONNRESET),
		"the server has read %q, %v; the client %v", got, served, asked)
}

// Without a VIA listener the proxy uses the TCP port, and without one it closes the connection.
func TestFallback(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "by TCP")
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	a := stacks(t).a
	// This host has no NIC of VIA at its loopback address.
	with := &Proxy{Listen: Address{"tcp", "127.0.0.1:0"}, To: Address{"via", "127.0.0.1:7000"}, Stack: a, Fallback: port}
	without := &Proxy{Listen: with.Listen, To: with.To, Stack: a}
	serve(t, with)
	serve(t, without)
	client := &http.Client{Timeout: waitLimit}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://" + with.Addr().String())
	must(t, err)
	got, err := io.ReadAll(r.Body)
	r.Body.Close()
	if all, fell := with.Connections(); string(got) != "by TCP" || err != nil || all != 1 || fell != 1 {
		t.Errorf("%q, %v; %d connections, %d of them by TCP", got, err, all, fell)
	}
	if r, err := client.Get("http://" + without.Addr().String()); err == nil {
		r.Body.Close()
		t.Error("it answers without a server")
	}
}

func TestParseAddress(t *testing.T) {
	for s, want := range map[string]Address{
		"tcp:127.0.0.1:80": {"tcp", "127.0.0.1:80"},
		"via::80":          {"via", ":80"},
		"via:[fd77::1]:80": {"via", "[fd77::1]:80"},
		"localhost:http":   {"tcp", "localhost:http"},
	} {
		if got, err := ParseAddress(s); got != want || err != nil {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "80", "via:host", "udp:host:80"} {
		if got, err := ParseAddress(s); err == nil {
			t.Errorf("%q is %v", s, got)
		}
	}
	nstest.ErrorIf(t, (&Proxy{Listen: Address{"via", ":80"}}).Open() == nil, "VIA without an interface")
}
