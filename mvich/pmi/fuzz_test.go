package pmi

import (
	"errors"
	"io"
	"strings"
	"testing"
)

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
		began, _, err := s.Serve(0, conn)
		var abort *AbortError
		if err != nil && !errors.Is(err, ErrAnswer) && !errors.As(err, &abort) {
			t.Fatal(err)
		}
		if began && !strings.Contains(said, "init") {
			t.Error("it has said that it is a rank")
		}
		answers := conn.out.String()
		if n := strings.Count(answers, "\n"); n > strings.Count(said, "\n")+1 {
			t.Errorf("%d answers", n)
		}
		for line := range strings.Lines(answers) {
			if !strings.HasPrefix(line, "cmd=") || len(line) > 2*maxLine {
				t.Errorf("the answer %q", line)
			}
		}
		for key, value := range s.job.values {
			if key == "" || len(key) >= maxKey || len(value) >= maxValue {
				t.Errorf("%q=%q is kept", key, value)
			}
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
		if c.Rank() < 0 || c.Rank() >= c.Size() || c.keys < 1 || c.vals < 1 {
			t.Fatalf("rank %d of %d, %d and %d bytes", c.rank, c.size, c.keys, c.vals)
		}
		_ = c.Put("k", "v")
		_ = c.Fence()
		_, _ = c.Get("k")
		_ = c.Close()
	})
}
