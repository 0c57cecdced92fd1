package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// starved is a listener whose Accept fails a given number of times.
type starved struct {
	net.Listener

	mu   sync.Mutex
	left []error // each is returned by an Accept
}

// fail has the next Accepts fail. An Accept that already waits is not affected.
func (s *starved) fail(errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, errs...)
}

func (s *starved) Accept() (net.Conn, error) {
	s.mu.Lock()
	if len(s.left) == 0 {
		s.mu.Unlock()
		return s.Listener.Accept()
	}
	defer s.mu.Unlock()
	err := s.left[0]
	s.left = s.left[1:]
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
}

// start runs a proxy over TCP alone, on a starved listener; end stops it.
func start(t *testing.T, p *Proxy) (l *starved, end func() error, done chan error) {
	t.Helper()
	echo := serving(t, func(c net.Conn) { io.Copy(c, c) })
	p.Listen, p.To = Address{"tcp", "127.0.0.1:0"}, Address{"tcp", echo}
	must(t, p.Open())
	l = &starved{Listener: p.listener}
	p.listener = l
	ctx, cancel := context.WithCancel(context.Background())
	done = make(chan error, 1)
	go func() { done <- p.Serve(ctx) }()
	t.Cleanup(cancel)
	return l, func() error { cancel(); return <-done }, done
}

// answers checks that a byte comes back.
func answers(c net.Conn, within time.Duration) error {
	c.SetDeadline(time.Now().Add(within))
	b := []byte{42}
	_, err := c.Write(b)
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	return err
}

// A proxy that is short of descriptors keeps the connections that it has, and takes new ones when it can.
func TestShortOfDescriptors(t *testing.T) {
	told := make(chan error, 8)
	p := &Proxy{Failed: func(err error) { told <- err }}
	l, end, _ := start(t, p)
	first := dial(t, p.Addr())
	must(t, answers(first, waitLimit))
	l.fail(syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ECONNABORTED)
	// The Accept that waits takes these; the next ones fail.
	for range 2 {
		must(t, answers(dial(t, p.Addr()), waitLimit))
	}
	if err := answers(first, waitLimit); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
	if err := <-told; !errors.Is(err, syscall.EMFILE) || len(told) != 0 {
		t.Errorf("told %v, and %d times more", err, len(told))
	}
	first.Close()
	check(t, end())
}

// nobody returns an address without a listener. Its socket is bound only to keep the port from others.
func nobody(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// A connection without a server is reset, so that it does not look like an empty answer.
func TestNoServer(t *testing.T) {
	p := &Proxy{Listen: Address{"tcp", "127.0.0.1:0"}, To: Address{"tcp", nobody(t)}}
	serve(t, p)
	c, err := net.Dial("tcp", p.Addr().String())
	if err == nil { // else it has heard of it already
		defer c.Close()
		c.SetDeadline(time.Now().Add(waitLimit))
		_, err = io.ReadAll(c)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// Other errors end it, as those of a listener of VIA do.
func TestListenerEnds(t *testing.T) {
	l, _, done := start(t, &Proxy{Most: -1})
	l.fail(syscall.EINVAL)
	l.Listener.(*net.TCPListener).SetDeadline(time.Unix(1, 0)) // wakes the Accept that waits
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(waitLimit):
		t.Fatal("it goes on")
	}
	if err := l.Listener.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it has left the listener open: %v", err)
	}
	via := &Proxy{Listen: Address{"via", ":7"}}
	if via.passes(&net.OpError{Op: "accept", Err: syscall.ENOBUFS}) {
		t.Error("an ended listener of VIA is asked again")
	}
}

// More connections than Most wait for those before them.
func TestMost(t *testing.T) {
	p := &Proxy{Most: 1}
	_, end, _ := start(t, p)
	first, second := dial(t, p.Addr()), dial(t, p.Addr())
	must(t, answers(first, waitLimit))
	if err := answers(second, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a second one at once: %v", err)
	}
	first.Close()
	second.SetDeadline(time.Now().Add(waitLimit))
	if _, err := io.ReadFull(second, make([]byte, 1)); err != nil {
		t.Errorf("a second one, after the first: %v", err)
	}
	// Full, and asked to end: it does.
	check(t, end())
}

// Refusals are reported once a second, with how many were not reported in between.
func TestRefusalsAreToldSeldom(t *testing.T) {
	var s seldom
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		after  time.Duration
		tell   bool
		untold int
	}{{0, true, 0}, {0, false, 0}, {time.Second - 1, false, 0}, {time.Second, true, 2}, {2*time.Second - 1, false, 0}, {time.Hour, true, 1}, {3 * time.Hour, true, 0}} {
		if tell, untold := s.turn(start.Add(c.after)); tell != c.tell || untold != c.untold {
			t.Errorf("after %v: %v, %d untold; want %v, %d", c.after, tell, untold, c.tell, c.untold)
		}
	}
	var told []error
	p := &Proxy{Failed: func(err error) { told = append(told, err) }}
	p.refusals = seldom{untold: 7}
	p.Refused(syscall.EKEYREJECTED)
	if len(told) != 1 || !errors.Is(told[0], syscall.EKEYREJECTED) || !strings.Contains(told[0].Error(), "7 before it were not told") {
		t.Errorf("told %v", told)
	}
	(&Proxy{}).Refused(syscall.EKEYREJECTED) // without Failed
}

// Connections that fail because the keys differ are reported at most once a second, on this side as on the other.
func TestKeysDifferSeldom(t *testing.T) {
	var told []error
	p := &Proxy{Failed: func(err error) { told = append(told, err) }}
	for range 10 {
		p.failed(t.Context(), fmt.Errorf("for a program: %w", syscall.EKEYREJECTED))
	}
	if len(told) != 1 {
		t.Errorf("%d reports", len(told))
	}
	p.failed(t.Context(), syscall.ECONNREFUSED)
	p.failed(t.Context(), syscall.ECONNREFUSED)
	if len(told) != 3 {
		t.Errorf("%d reports; want all of another cause", len(told))
	}
}
