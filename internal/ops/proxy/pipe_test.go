package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
)

// witness is a connection that sends nothing and inspects the buffer that it is read into.
type witness struct {
	net.Conn
	saw *[]byte
}

func (w witness) Read(b []byte) (int, error) {
	*w.saw = bytes.Clone(b)
	return 0, io.EOF
}

// Data of one peer is not in the buffer for another peer, which may report a write that it has not made.
func TestBuffersAreEmpty(t *testing.T) {
	for range 100 { // the pool keeps not all that it gets
		b := buffers.Get().(*[]byte)
		copy(*b, "secret")
		buffers.Put(b)
		a, c := net.Pipe()
		var saw []byte
		must(t, pipe(c, witness{a, &saw}, nil))
		a.Close()
		c.Close()
		if len(saw) == 0 || len(bytes.Trim(saw, "\x00")) > 0 {
			t.Fatalf("in a buffer of %d bytes: %q", len(saw), bytes.Trim(saw, "\x00"))
		}
	}
}

// piping is a pipe from a client to a VIA server, in which the other direction has no end.
func piping(t *testing.T) (a *vianet.Stack, client, to net.Conn, server *vianet.Conn, piped chan error) {
	t.Helper()
	h := stacks(t)
	to, server = h.connected(t)
	client, from := net.Pipe()
	piped = make(chan error, 1)
	go func() { piped <- pipe(to, from, make(chan struct{})) }()
	return h.a, using(t, client, nil), to, server, piped
}

// A server that breaks the connection after the end of its answer, as the other proxy does if its server is gone, ends
// the upload: it does not seem to arrive.
func TestBreakOfServerAfterAnswer(t *testing.T) {
	_, client, to, server, piped := piping(t)
	must(t, server.CloseWrite())
	must(t, nstest.Err(io.ReadAll(to)))
	must(t, errors.Join(server.SetLinger(0), server.Close()))
	var err error
	for err == nil {
		_, err = client.Write(make([]byte, 1000))
	}
	nstest.WantErr(t, "Write", err, io.ErrClosedPipe)
	client.Close()
	check(t, <-piped)
}

// The answer arrives complete even if the VIA server has already closed, with data still under way, when the client
// ends its stream.
func TestAnswerAfterUpload(t *testing.T) {
	a, client, to, server, piped := piping(t)
	say := func(n int) { // and wait until it is written
		for range 2 {
			must(t, nstest.Err(client.Write(make([]byte, n))))
			n = 0
		}
	}
	for before, sent := uint64(0), uint64(1); sent > before; { // until the server, which does not read, has no room
		before = a.Stats().Messages.Times
		say(1000)
		sent = a.Stats().Messages.Times
	}
	answer := random(10_000, 3)
	must(t, nstest.Err(server.Write(answer)))
	must(t, server.Close())
	await.Until(t, "the connection is over", func() bool { _, err := to.Write(nil); return err != nil })
	client.Close()
	check(t, <-piped)
	if got, err := io.ReadAll(to); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("%d bytes of the answer, %v", len(got), err)
	}
}

// A connection that breaks after the answer's end does not look as if the server had got the rest of the upload.
func TestBreakAfterAnswer(t *testing.T) {
	h := stacks(t)
	to, _ := h.connected(t)
	tcp := listen(t)
	client := dial(t, tcp.Addr())
	from := accept(t, tcp)
	answered, piped := make(chan struct{}), make(chan error, 1)
	close(answered)
	go func() { piped <- pipe(to, asTCP(from), answered) }()
	h.na.Remove(t)
	await.Until(t, "the connection is broken", func() bool { _, err := to.Write(nil); return err != nil })
	client.Write(make([]byte, 1000)) // both may fail already
	client.CloseWrite()
	check(t, <-piped)
	from.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client reads %v, want a reset", err)
	}
}

// FuzzParseAddress: any text is an address that formats back to itself, or an error.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"tcp:127.0.0.1:80", "via::80", "via:[fd77::1]:80", "localhost:http", "tcp:via:1", "via:tcp:1", "[:]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			return
		}
		nstest.FatalIf(t, a.Network != "tcp" && a.Network != "via", "%q is of the network %q", s, a.Network)
		if b, err := ParseAddress(a.String()); a != b || err != nil {
			t.Fatalf("%q is %q, which is %+v, %v", s, a, b, err)
		}
	})
}
