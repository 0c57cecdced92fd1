package bench

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// Fairness and the least share of some senders.
func TestIncastShares(t *testing.T) {
	for _, c := range []struct {
		messages        []int64
		fairness, least float64
	}{
		{[]int64{7}, 1, 1},
		{[]int64{5, 5, 5, 5}, 1, 1},
		{[]int64{8, 0, 0, 0}, 0.25, 0},
		{[]int64{3, 1}, 0.8, 1. / 3},
		{[]int64{1, 2, 4}, 7. / 9, 0.25},
	} {
		r := IncastResult{Messages: c.messages}
		if f, l := r.Fairness(), r.LeastShare(); math.Abs(f-c.fairness) > 1e-12 || math.Abs(l-c.least) > 1e-12 {
			t.Errorf("%d: fairness %v, least share %v, want %v and %v", c.messages, f, l, c.fairness, c.least)
		}
	}
}

// A window in which nothing comes of a flow is a failure, and no figure.
func TestWindowOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flows := newArrivals(t.Context(), 2)
		flows.came[1].Store(1)
		err := fail.Try(func() { flows.window(time.Second, func(came []int64) bool { return slices.Max(came) > 0 }) })
		nstest.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "stood still"), "%v, want that a flow stood still", err)
	})
}

// A listener ends with the worker that waits on it, long before its time limit.
func TestListenerEnds(t *testing.T) {
	ctx, stop := stopping(t)
	n, err := openNetwork(Params{}, false)
	nstest.Must(t, err)
	nstest.Must(t, fail.Try(func() {
		l := n.listenWithin(ctx, netip.MustParseAddrPort("127.0.0.1:0"), 5*time.Second)
		stop()
		nstest.WantErr(t, "accept", nstest.Err(l.Accept()), net.ErrClosed)
	}))
}

func incastConfig(senders int) IncastConfig {
	return IncastConfig{Senders: senders, BedConfig: BedConfig{Mode: "generic", WorkerArgs: []string{asWorker}, Stderr: os.Stderr}}
}

// If frames are lost that no counter has, the figures show it: they are resent and counted as
// missing, and all messages still arrive.
func TestIncastLoses(t *testing.T) {
	nstest.Require(t)
	star, err := testbed.NewLossyStar(3, 1500, 0.05)
	nstest.Must(t, err)
	n, err := openIncast(incastConfig(2), star)
	nstest.Must(t, err)
	defer n.Close()
	for _, tcp := range []bool{false, true} {
		_, before, err := star.Counts()
		nstest.Must(t, err)
		// Of both senders eight messages at least, some 700 frames.
		r, err := n.Stream(t.Context(), IncastLoad{TCP: tcp, Senders: 2, Bytes: 64 << 10, Duration: time.Millisecond})
		nstest.Must(t, err)
		_, lost, err := star.Counts()
		nstest.Must(t, err)
		if r.Resent == 0 || !tcp && (r.Unnamed == 0 || r.Unnamed > lost-before) || tcp && r.Unnamed != 0 {
			t.Errorf("TCP %v: %d frames were lost, %+v", tcp, lost-before, r)
		}
	}
}

// Impossible loads are refused, and the end of a context ends a stream.
func TestIncastFails(t *testing.T) {
	nstest.Require(t)
	nstest.ErrorIf(t, nstest.Err(OpenIncast(incastConfig(0))) == nil, "no senders")
	n, err := OpenIncast(incastConfig(1))
	nstest.Must(t, err)
	defer n.Close()
	good := IncastLoad{Senders: 1, Bytes: 1, Duration: time.Millisecond}
	for what, change := range map[string]func(*IncastLoad){
		"there are 1": func(l *IncastLoad) { l.Senders = 2 }, "0 senders": func(l *IncastLoad) { l.Senders = 0 },
		"0 bytes": func(l *IncastLoad) { l.Bytes = 0 }, "at most a minute": func(l *IncastLoad) { l.Duration = time.Hour },
	} {
		l := good
		change(&l)
		nstest.ErrSays(t, what, nstest.Err(n.Stream(t.Context(), l)), what)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	good.Duration = time.Minute
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	nstest.WantErr(t, "the end of the context", nstest.Err(n.Stream(ctx, good)), why)
}
