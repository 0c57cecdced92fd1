package pmi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// rankOf connects a Client with a server in the given way; result is that of Serve.
func rankOf(
	t *testing.T, s *Server, rank, size int, way func(*testing.T, int, int, func(net.Conn)) func(string) string,
) (c *Client, result chan string) {
	t.Helper()
	result = make(chan string, 1)
	c, err := connect(way(t, rank, size, func(conn net.Conn) {
		defer conn.Close()
		began, done, err := s.Serve(rank, conn)
		result <- fmt.Sprint(began, done, err)
	}))
	nstest.Must(t, err)
	return c, result
}

// The server's mapping shows MPICH that no two ranks share a host.
func TestServerMapping(t *testing.T) {
	c, _ := rankOf(t, NewServer(1), 0, 1, inherited)
	defer c.Close()
	if value, err := c.Get(processMapping); value != "(vector,(0,1,1))" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	if _, err := c.Get("nothing"); !errors.Is(err, ErrAnswer) {
		t.Errorf("a key that no rank has put: %v", err)
	}
}

// A rank that aborts, or exits without finalize, is distinguished from one that is done. End ends the fences that
// others wait in.
func TestServerEnds(t *testing.T) {
	s := NewServer(3)
	a, aborted := rankOf(t, s, 0, 3, inherited)
	b, left := rankOf(t, s, 1, 3, inherited)
	c, waited := rankOf(t, s, 2, 3, inherited)
	nstest.Check(t, a.Abort(7))
	if got := <-aborted; got != "true false pmi: rank 0 has aborted the job with code 7" {
		t.Error(got)
	}
	b.conn.Close()
	if got := <-left; got != "true false <nil>" {
		t.Error(got)
	}
	failed := make(chan error)
	go func() { failed <- c.Fence() }()
	s.End()
	if err := <-failed; !errors.Is(err, io.EOF) {
		t.Errorf("a fence that cannot be complete: %v", err)
	}
	if got := <-waited; !strings.HasPrefix(got, "true false "+errOver.Error()) {
		t.Error(got)
	}
}

// No rank can change another's values, or fill the launcher's memory.
func TestServerKeys(t *testing.T) {
	s := NewServer(1)
	c, _ := rankOf(t, s, 0, 1, inherited)
	defer c.Close()
	nstest.Check(t, errors.Join(c.Put("key", "one"), c.Put("other", "one")))
	if err := c.Put("key", "two"); !errors.Is(err, ErrAnswer) {
		t.Errorf("a key that is taken: %v", err)
	}
	if value, err := c.Get("key"); value != "one" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	for i := range maxKeys {
		s.job.values[fmt.Sprint("n", i)] = ""
	}
	if err := c.Put("last", "one"); !errors.Is(err, ErrAnswer) {
		t.Errorf("more than there is room for: %v", err)
	}
}

// A malformed line ends the rank's connection.
func TestServerRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"cmd=mcmd":               "asks for \"mcmd\"",
		"hello":                  "asks for \"\"",
		strings.Repeat("x", 1e5): "more than 8192 bytes",
	} {
		in, out := net.Pipe()
		go func() {
			io.WriteString(out, line+"\n")
			io.Copy(io.Discard, out)
		}()
		began, done, err := NewServer(1).Serve(0, in)
		if got := fmt.Sprint(began, done, err); !strings.Contains(got, want) {
			t.Errorf("%.20q: %s", line, got)
		}
		in.Close()
		out.Close()
	}
}
