package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
)

// transactions makes some of several sizes, those of the warm-up with every byte checked.
func transactions(ctx context.Context, s *Session) error {
	for _, reply := range []int{1, 4, 7, 8, 64, 1500, 1 << 16} {
		r, err := s.Transactions(ctx, reply, 3*time.Millisecond)
		if err != nil {
			return fmt.Errorf("replies of %d bytes: %w", reply, err)
		}
		if r.PerSecond <= 0 || r.RoundTrips.TotalCount() == 0 || r.RoundTrips.Min() <= 0 || r.CPUTx <= 0 || r.CPURx <= 0 {
			return fmt.Errorf("replies of %d bytes: %+v", reply, r)
		}
	}
	return nil
}

func TestTransactionsOverVeth(t *testing.T) {
	b := onBed(t)
	for _, name := range []string{"vi-reliable-delivery", "vi-reliable-delivery-wait", "vi-rdma-write", "tcp-spin"} {
		b.within(t, name, 1<<16, func(s *Session) error { return transactions(t.Context(), s) })
	}
}

// Impossible requests are refused before anything waits for them.
func TestTransactionsRefuse(t *testing.T) {
	for _, c := range []struct {
		name     string
		maxBytes int
		reply    int
		want     string
	}{
		{"tcp-spin", 64, 0, "a reply of 0 bytes"},
		{"tcp-spin", 64, MaxMessage + 1, "1 to"},
		{"udp-spin", 64, 64, "makes no transactions"},
		{"tcp-spin", 4, 4, "larger than announced"}, // the request is
		{"tcp-spin", 64, 65, "larger than announced"},
	} {
		s := onLoopback(t, c.name, c.maxBytes)
		what := fmt.Sprintf("%s, %d bytes", c.name, c.reply)
		nstest.ErrSays(t, what, nstest.Err(s.Transactions(t.Context(), c.reply, time.Millisecond)), c.want)
	}
}

// A session's ping-pong and stream have their figures, with the requested congestion
// control. They report what was resent: on a connection without losses only spurious
// retransmissions, on a busy machine.
func TestExchange(t *testing.T) {
	ctx := t.Context()
	s := onLoopback(t, "tcp-spin", 4096, func(p *Params) {
		p.Congestion, p.LongestTimeout, p.WaitLimit = "reno", time.Second, time.Minute
	})
	ping, err := s.PingPong(ctx, 64, time.Millisecond, 50)
	if err != nil || ping.N < 50 || ping.RoundTrips.TotalCount() != ping.N || ping.RoundTrips.Min() <= 0 {
		t.Errorf("ping-pong: %+v, %v", ping, err)
	}
	stream, err := s.Stream(ctx, 4096, 5*time.Millisecond, 1)
	if err != nil || stream.N < 1 || !(stream.MBps > 0) {
		t.Errorf("stream: %+v, %v", stream, err)
	}
	if r, err := s.Repeats(ctx); err != nil || r.Spurious > r.Resent {
		t.Errorf("repeats: %+v, %v", r, err)
	}
	nstest.ErrorIf(t, nstest.Err(s.Stream(ctx, 0, time.Second, 1)) == nil, "messages of no bytes were streamed")
	nstest.Check(t, s.Close(ctx))
	nstest.Equal(t, "since", (Repeats{5, 3}).Since(Repeats{2, 1}), (Repeats{3, 2}))
	// What does not exist is refused, and what counts nothing says so.
	nstest.ErrSays(t, "repeats of UDP", nstest.Err(onLoopback(t, "udp-spin", 64).Repeats(ctx)), "does not count")
}

// A congestion control that the kernel does not have is an error that names it.
func TestUnknownCongestionControl(t *testing.T) {
	client, server := workers(t)
	_, err := openSession(t.Context(), client, server, Row{Name: "tcp-spin"}, 64, func(p *Params) { p.Congestion = "none-such" })
	nstest.ErrSays(t, "none-such", err, "TCP_CONGESTION none-such")
}

// Every operation is done as often as it should be, and each has its time.
func TestOperate(t *testing.T) {
	b := onBed(t)
	type key struct {
		name  string
		bytes int
	}
	objects, memory := map[key]int64{}, map[key]int64{}
	for _, name := range []string{OpCreatePtag, OpDestroyPtag, OpCreateCQ, OpDestroyCQ, OpCreateVI, OpDestroyVI} {
		objects[key{name, 0}] = 20
	}
	for _, name := range []string{OpAllocMem, OpFreeMem, OpRegisterMem, OpDeregisterMem} {
		memory[key{name, 4096}], memory[key{name, 32 << 20}] = 20, 10
	}
	for _, c := range []struct {
		sizes []int
		want  map[key]int64
	}{{nil, objects}, {[]int{4096, 32 << 20}, memory}} {
		r, err := b.Operate(t.Context(), Operations{Sizes: c.sizes, Count: 20})
		nstest.Must(t, err)
		expect(t, r, c.want, func(o OperationTimes) key { return key{o.Name, o.Bytes} })
		if c := r.Conditions; c.Mode != "generic" || c.MTU != 1500 || len(c.PinnedCPUs) != 1 {
			t.Errorf("conditions %+v", c)
		}
	}
}

// expect checks that each operation was done the wanted number of times, and no other
// was done.
func expect[K comparable](t *testing.T, r *OperationsResult, want map[K]int64, of func(OperationTimes) K) {
	t.Helper()
	for _, o := range r.Times {
		if n := o.Times.TotalCount(); n != want[of(o)] || o.Times.Min() <= 0 {
			t.Errorf("%s, %d bytes: %d times, want %d; the least %d ns", o.Name, o.Bytes, n, want[of(o)], o.Times.Min())
		}
		delete(want, of(o))
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// Connections are made and ended beside that of the endpoint, which carries messages
// before and afterwards.
func TestConnections(t *testing.T) {
	b := onBed(t)
	b.within(t, "vi-reliable-delivery", MaxLoadBytes, func(s *Session) error {
		for range 2 {
			r, err := s.Connections(t.Context(), 5)
			if err != nil {
				return err
			}
			expect(t, r, map[string]int64{OpConnect: 5, OpDisconnect: 5, OpConnectTCP: 5, OpCloseTCP: 5}, func(o OperationTimes) string { return o.Name })
			if err := loads(t.Context(), s); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestOperationsRefuse(t *testing.T) {
	client, _ := workers(t)
	ctx := t.Context()
	for title, o := range map[string]Operations{
		"none":     {Count: 0},
		"too many": {Count: maxOperations + 1},
		"no size":  {Count: 1, Sizes: []int{0}},
		"large":    {Count: 1, Sizes: []int{MaxOperationBytes + 1}},
	} {
		if fail.Try(func() { operateOn(ctx, client, o) }) == nil {
			t.Errorf("%s: accepted", title)
		}
	}
	s := onLoopback(t, "tcp-spin", 64)
	nstest.ErrorIf(t, nstest.Err(s.Connections(ctx, 0)) == nil, "no connection: accepted")
	nstest.ErrSays(t, "connections of tcp-spin", nstest.Err(s.Connections(ctx, 1)), "no connections")
}

// Large memory is registered less often, but at least once.
func TestOperationsOf(t *testing.T) {
	for _, c := range []struct{ count, bytes, want int }{
		{200, 4096, 200}, {200, LargeMemory, 200}, {200, MaxOperationBytes, 50}, {1, MaxOperationBytes, 1},
	} {
		nstest.Equal(t, fmt.Sprintf("%d of %d bytes", c.count, c.bytes), (Operations{Count: c.count}).of(c.bytes), c.want)
	}
}
