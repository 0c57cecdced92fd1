package pmi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

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
		began, done, err := s.Serve(t.Context(), rank, conn)
		result <- fmt.Sprint(began, done, err)
	}))
	nstest.Must(t, err)
	return c, result
}

// The server's mapping shows MPICH that no two ranks share a host.
func TestServerMapping(t *testing.T) {
	c, _ := rankOf(t, NewServer(1), 0, 1, inherited)
	defer c.Close()
	value, err := c.Get(processMapping)
	nstest.ErrorIf(t, value != "(vector,(0,1,1))" || err != nil, "%q, %v", value, err)
	nstest.WantErr(t, "a key that no rank has put", nstest.Err(c.Get("nothing")), ErrAnswer)
}

// A rank that aborts, or exits without finalize, is distinguished from one that is done. End ends the fences that
// others wait in.
func TestServerEnds(t *testing.T) {
	s := NewServer(3)
	a, aborted := rankOf(t, s, 0, 3, inherited)
	b, left := rankOf(t, s, 1, 3, inherited)
	c, waited := rankOf(t, s, 2, 3, inherited)
	nstest.Check(t, a.Abort(7))
	nstest.Equal(t, "Serve of the one that aborts", <-aborted, "true false pmi: rank 0 has aborted the job with code 7")
	b.conn.Close()
	nstest.Equal(t, "Serve of the one that exits", <-left, "true false <nil>")
	failed := make(chan error)
	go func() { failed <- c.Fence() }()
	s.End()
	nstest.WantErr(t, "a fence that cannot be complete", <-failed, io.EOF)
	got := <-waited
	nstest.ErrorIf(t, !strings.HasPrefix(got, "true false "+errOver.Error()), "%s", got)
}

// A rank that has finalized enters no fence any more, though its connection lives on: fences that others wait in end.
func TestFinalizeEndsFences(t *testing.T) {
	s := NewServer(2)
	a, waited := rankOf(t, s, 0, 2, inherited)
	b, _ := rankOf(t, s, 1, 2, inherited)
	failed := make(chan error, 1)
	go func() { failed <- a.Fence() }()
	nstest.Check(t, nstest.Err(b.ask("finalize", "finalize_ack")))
	select {
	case err := <-failed:
		nstest.WantErr(t, "a fence that cannot be complete", err, io.EOF)
		got := <-waited
		nstest.ErrorIf(t, !strings.HasPrefix(got, "true false "+errOver.Error()), "%s", got)
	case <-time.After(10 * time.Second):
		t.Error("the fence has not ended")
	}
}

// A rank whose process has ended waits in no fence, and the server reads what it has sent before.
func TestServeOfEndedRank(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	conn := &wired{Reader: strings.NewReader("cmd=init pmi_version=1\ncmd=barrier_in\n")}
	time.AfterFunc(10*time.Millisecond, end)
	began, done, err := NewServer(2).Serve(ctx, 0, conn)
	nstest.Equal(t, "what Serve returns", fmt.Sprint(began, done, err), "true false <nil>")
}

// No rank can change another's values, or fill the launcher's memory.
func TestServerKeys(t *testing.T) {
	s := NewServer(1)
	c, _ := rankOf(t, s, 0, 1, inherited)
	defer c.Close()
	nstest.Check(t, errors.Join(c.Put("key", "one"), c.Put("other", "one")))
	nstest.WantErr(t, "a key that is taken", c.Put("key", "two"), ErrAnswer)
	value, err := c.Get("key")
	nstest.ErrorIf(t, value != "one" || err != nil, "%q, %v", value, err)
	for i := range maxKeys {
		s.job.values[fmt.Sprint("n", i)] = ""
	}
	nstest.WantErr(t, "more than there is room for", c.Put("last", "one"), ErrAnswer)
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
		began, done, err := NewServer(1).Serve(t.Context(), 0, in)
		got := fmt.Sprint(began, done, err)
		nstest.ErrorIf(t, !strings.Contains(got, want), "%.20q: %s", line, got)
		in.Close()
		out.Close()
	}
}

// Only spaces separate words: a rank of MPICH publishes values with other white space, and other ranks get them whole.
func TestServerWords(t *testing.T) {
	s := NewServer(1)
	const value = "a\tb\v\u00a0\u0085c"
	conn := &wired{Reader: strings.NewReader("cmd=put kvsname=job  key=k value=" + value + "\r\n")}
	_, _, err := s.Serve(t.Context(), 0, conn)
	nstest.Check(t, err)
	got, err := s.job.Get("k")
	nstest.Check(t, err)
	nstest.Equal(t, "the value", got, value)
	c, _ := rankOf(t, s, 0, 1, inherited)
	defer c.Close()
	got, err = c.Get("k")
	nstest.Check(t, err)
	nstest.Equal(t, "what a rank gets", got, value)
}

// The message of an abort is the rest of its line, which MPICH does not quote.
func TestServerAbortMessage(t *testing.T) {
	for line, want := range map[string]string{
		"cmd=abort exitcode=7 error_msg=it ended  with exitcode=9": "with code 7: it ended  with exitcode=9",
		"cmd=abort exitcode=7": "with code 7",
	} {
		_, _, err := NewServer(1).Serve(t.Context(), 0, &wired{Reader: strings.NewReader(line + "\n")})
		nstest.Equal(t, line, fmt.Sprint(err), "pmi: rank 0 has aborted the job "+want)
	}
}

// wired is a connection whose input is fixed.
type wired struct {
	io.Reader
	out strings.Builder
}

func (w *wired) Write(b []byte) (int, error) { return w.out.Write(b) }
func (w *wired) Close() error                { return nil }

// For any input of a rank, the server answers each line or ends the connection: with an *AbortError, ErrAnswer, or
// the end of the input. The size of published values is bounded.
func FuzzServer(f *testing.F) {
	f.Add("cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_my_kvsname\n" +
		"cmd=put kvsname=job key=a value=b=c\ncmd=get kvsname=job key=a\ncmd=barrier_in\ncmd=finalize\n")
	f.Add("cmd=abort exitcode=x error_msg=y\n")
	f.Add("cmd=put kvsname=job key=" + strings.Repeat("k", maxKey) + " value=\n")
	f.Add("cmd=get_universe_size\ncmd=get_appnum cmd=init\ncmd=\n")
	f.Fuzz(func(t *testing.T, said string) {
		s := NewServer(1)
		conn := &wired{Reader: strings.NewReader(said)}
		began, _, err := s.Serve(t.Context(), 0, conn)
		var abort *AbortError
		nstest.FatalIf(t, err != nil && !errors.Is(err, ErrAnswer) && !errors.As(err, &abort), "%v", err)
		nstest.ErrorIf(t, began && !strings.Contains(said, "init"), "it has said that it is a rank")
		answers := conn.out.String()
		n := strings.Count(answers, "\n")
		nstest.ErrorIf(t, n > strings.Count(said, "\n")+1, "%d answers", n)
		for line := range strings.Lines(answers) {
			nstest.ErrorIf(t, !strings.HasPrefix(line, "cmd=") || len(line) > 2*maxLine, "the answer %q", line)
		}
		for key, value := range s.job.values {
			nstest.ErrorIf(t, key == "" || len(key) >= maxKey || len(value) >= maxValue, "%q=%q is kept", key, value)
		}
	})
}

// For any input of a launcher, a rank that starts has a number within the job and room for keys and values, or an
// error. No later answer makes it panic.
func FuzzClient(f *testing.F) {
	f.Add("cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n" +
		"cmd=response_to_init rc=0\ncmd=maxes keylen_max=64 vallen_max=256\ncmd=my_kvsname kvsname=x\n" +
		"cmd=put_result rc=0\ncmd=barrier_out rc=0\ncmd=get_result rc=0 value=v\ncmd=finalize_ack rc=0\n")
	f.Add("cmd=initack\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\ncmd=response_to_init\ncmd=maxes keylen_max=-1 vallen_max=1\n")
	f.Add("cmd=initack rc=-1\n")
	f.Fuzz(func(t *testing.T, said string) {
		c := &Client{rank: -1, size: -1}
		c.use(&wired{Reader: strings.NewReader(said)})
		err := c.greet(1)
		if err == nil {
			err = c.begin()
		}
		if err != nil {
			return
		}
		nstest.FatalIf(t, c.Rank() < 0 || c.Rank() >= c.Size() || c.keys < 1 || c.vals < 1,
			"rank %d of %d, %d and %d bytes", c.rank, c.size, c.keys, c.vals)
		_ = c.Put("k", "v")
		_ = c.Fence()
		_, _ = c.Get("k")
		_ = c.Close()
	})
}
