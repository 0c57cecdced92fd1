package vianet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

// What Dial says when there is no connection to be had.
func TestDialErrors(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	host := h.nicB.Query().Address.String()
	for _, test := range []struct {
		network, address string
		want             error
	}{
		{"via", net.JoinHostPort(host, "7"), syscall.ECONNREFUSED},
		{"tcp4", "10.9.9.9:7", syscall.EHOSTUNREACH},
		{"udp", net.JoinHostPort(host, "7"), net.UnknownNetworkError("udp")},
		{"via", host, nil},
		{"via", ":7", nil},
		{"via6", net.JoinHostPort(host, "7"), nil},
		{"via", net.JoinHostPort(host, "65536"), nil},
	} {
		c, err := h.a.Dial(test.network, test.address)
		var oe *net.OpError
		if c != nil || !errors.As(err, &oe) || oe.Op != "dial" || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s %s: %v, %v", test.network, test.address, c, err)
		}
		if errors.As(err, &oe) && oe.Timeout() {
			t.Errorf("%s %s: %v is a time-out", test.network, test.address, err)
		}
	}
}

// A Dial ends with its context, however long the attempt goes on.
func TestDialContext(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	addr := h.listen(t).Addr().String()

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.a.DialContext(ctx, "via", addr); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithDeadline(context.Background(), longAgo)
	defer cancel()
	_, err := h.a.DialContext(ctx, "via", addr)
	isTimeout(t, "Dial", err)

	ctx, cancel = context.WithCancel(context.Background())
	c, err := h.a.DialContext(ctx, "via", addr)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := c.Write([]byte("after its end the context does not matter")); err != nil {
		t.Error(err)
	}
}

// Ports: one listener each, free again after Close, chosen when it is 0.
func TestListenPorts(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l, err := h.b.Listen("via", ":80")
	if err != nil {
		t.Fatal(err)
	}
	if a := l.Addr().(vianet.Addr); a.Port() != 80 || a.Network() != "via" {
		t.Errorf("address %v %v", a.Network(), a)
	}
	_, err = h.b.Listen("via", ":80")
	var oe *net.OpError
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &oe) || oe.Op != "listen" || oe.Addr.String() != "[::]:80" {
		t.Errorf("twice: %v", err)
	}
	if _, err := h.b.Listen("unix", ":80"); err == nil {
		t.Error("a listener of another network")
	}
	c, err := h.a.Dial("via", net.JoinHostPort(h.nicB.Query().Address.String(), "80"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	for range 100 {
		l, err := h.b.Listen("tcp", "[::]:80")
		if err != nil {
			t.Fatalf("again: %v", err)
		}
		l.Close()
	}
}

// A deadline and Close end an Accept; what nobody has accepted is broken: nobody has
// said all on it.
func TestListenerCloses(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	l.SetDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := l.Accept()
	isTimeout(t, "Accept", err)
	l.SetDeadline(never)

	c := h.dial(t, l.Addr())
	time.AfterFunc(10*time.Millisecond, func() { l.Close() })
	for err = nil; err == nil; {
		_, err = l.Accept()
	}
	if !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	waiting := h.listen(t)
	lost := h.dial(t, waiting.Addr())
	waiting.Close()
	lost.SetDeadline(time.Now().Add(patience))
	if n, err := lost.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that nobody accepted: %d bytes, %v", n, err)
	}
	c.Close()
}

// Closing a stack ends everything that is under way on it, and whoever it is
// connected with hears of it.
func TestStackClose(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	l := h.listen(t)
	if _, err := b.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
	})
	wait.Go(func() {
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
	})
	if err := h.b.Close(); err != nil {
		t.Error(err)
	}
	wait.Wait()
	if got, err := io.ReadAll(a); err != nil || string(got) != "last" {
		t.Errorf("the other side: %q, %v", got, err)
	}
	if err := h.b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := h.b.Dial("via", l.Addr().String()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial: %v", err)
	}
	if _, err := h.b.Listen("via", ":0"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Listen: %v", err)
	}
}

// A NIC that is closed under its stack ends the connections, and nothing hangs.
func TestNicClose(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, _ := h.pair(t)
	done := make(chan error, 2)
	go func() {
		_, err := a.Read(make([]byte, 100_000))
		done <- err
	}()
	go func() {
		_, err := a.Write(make([]byte, 100_000))
		done <- err
	}()
	if err := h.nicA.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-done; err == nil {
			t.Error("no error")
		}
	}
	if _, err := h.a.Dial("via", "10.0.0.2:1"); err == nil {
		t.Error("Dial on a closed NIC")
	}
}

func TestOptions(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	for _, o := range []vianet.Options{
		{Buffers: vianet.MinBuffers - 1}, {Buffers: vipl.MaxDescriptorsPerQueue + 1},
		{BufferSize: 256}, {BufferSize: 4097}, {BufferSize: 2 << 20}, {Linger: -1},
	} {
		if _, err := vianet.New(h.nicA, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// Many connections of one NIC at once, all of them in use, and none of them
// leaves anything behind.
func TestMany(t *testing.T) {
	const count = 300
	o := vianet.Options{Buffers: vianet.MinBuffers, BufferSize: 512, Threshold: 4000}
	h := inMemory(t, o)
	l := h.listen(t)
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		for range count {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			wait.Go(func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err != nil {
					t.Error(err)
				}
			})
		}
	})
	conns := make([]net.Conn, count)
	for i := range conns {
		conns[i] = h.dial(t, l.Addr())
	}
	for i, c := range conns {
		wait.Go(func() {
			defer c.Close()
			data := randomBytes(100+i*53, byte(i))
			var sender sync.WaitGroup
			defer sender.Wait()
			sender.Go(func() {
				if err := writeAll(c, data, uint64(i)); err != nil {
					t.Error(err)
				}
				c.(*vianet.Conn).CloseWrite()
			})
			if got, err := io.ReadAll(c); err != nil || string(got) != string(data) {
				t.Errorf("connection %d: %d of %d bytes, %v", i, len(got), len(data), err)
			}
		})
	}
}
