package trace

import (
	"context"
	"errors"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

func config(t *testing.T) Config {
	t.Helper()
	a, b := nstest.Pair(t, nstest.Options{})
	return Config{
		Sender: End{a.Do, a.Name, a.IPv4}, Receiver: End{b.Do, b.Name, b.IPv4},
		Messages: 300, Bytes: 64, Level: vipl.ReliableDelivery, Mode: xdpnic.ModeAuto,
	}
}

// Each step was reached by most messages, in its order on each side. If the sender waits for a CPU,
// the receiver may have the whole message before PostSend returns. The next message is then posted at
// once, and its doorbell may wait until then (vipl/coalesce.go), but never twice in a row.
func TestSteps(t *testing.T) {
	for _, bytes := range []int{0, 64, 20000} {
		c := config(t)
		c.Bytes = bytes
		list, err := Run(context.Background(), c)
		nstest.Must(t, err)
		nstest.FatalIf(t, len(list) != len(steps), "%d steps", len(list))
		for i, s := range list {
			nstest.ErrorIf(t, s.At <= 0 || s.P99 < s.At || s.Name == "" || s.Where == "", "%d bytes: %+v", bytes, s)
			sameSide := i > 0 && i != seen-1
			if sameSide && (s.At < list[i-1].At && i != posted-1 || s.Took < 0) {
				t.Errorf("%d bytes: %+v is before %+v", bytes, s, list[i-1])
			}
		}
	}
}

func TestEnds(t *testing.T) {
	c := config(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	nstest.WantErr(t, "cancelled", nstest.Err(Run(ctx, c)), context.Canceled)
	c.Bytes = -1
	if _, err := Run(context.Background(), c); err == nil {
		t.Error("messages of -1 bytes")
	}
	c.Bytes, c.Sender.Interface = 64, "no-such-nic"
	if _, err := Run(context.Background(), c); err == nil {
		t.Error("an interface that is not there")
	}
}

// One message is enough.
func TestOne(t *testing.T) {
	c := config(t)
	c.Messages = 1
	// A timer may ring its doorbell, on a busy machine; then there is nothing to report.
	list, err := Run(context.Background(), c)
	for tries := 1; errors.Is(err, errNone) && tries < 100; tries++ {
		list, err = Run(context.Background(), c)
	}
	nstest.ErrorIf(t, err != nil || len(list) != len(steps) || list[len(list)-1].At <= 0, "%+v, %v", list, err)
}

// A message is left out if one of its stamps is missing or belongs to the previous message.
func TestTake(t *testing.T) {
	for name, c := range map[string]struct {
		moment int
		ns     int64
		kept   int
	}{"all": {posted, 50, 1}, "missing": {rung, 0, 0}, "of the one before": {ringing, 5, 0}} {
		var at stamps
		for i := range at {
			at[i].Store(int64(10 + i))
		}
		at[c.moment].Store(c.ns)
		var samples [moments][]int64
		if take(&at, &samples); len(samples[posting]) != c.kept || len(samples[received]) != c.kept {
			t.Errorf("%s: %v", name, samples)
		}
	}
}

func TestResult(t *testing.T) {
	var samples [moments][]int64
	for i := range samples {
		samples[i] = []int64{int64(i) * 10, int64(i) * 30, int64(i) * 20}
	}
	for i, s := range result(&samples) {
		nstest.ErrorIf(t, s.At != int64(i+1)*20 || s.Took != 20 || s.P99 != int64(i+1)*30, "%+v", s)
	}
	var none [moments][]int64
	if s := result(&none); s[0].At != 0 {
		t.Errorf("of nothing: %+v", s[0])
	}
}

// A quantile is the least time that its share of the messages does not exceed.
func TestQuantile(t *testing.T) {
	times := func(n int64) (v []int64) {
		for i := n; i > 0; i-- {
			v = append(v, i)
		}
		return v
	}
	for _, c := range []struct {
		n    int64
		q    float64
		want int64
	}{{0, 0.5, 0}, {1, 0.5, 1}, {1, 0.99, 1}, {2, 0.5, 1}, {3, 0.5, 2}, {100, 0.5, 50}, {100, 0.99, 99}, {101, 0.99, 100}, {300, 0.99, 297}} {
		nstest.Equal(t, "quantile", quantile(times(c.n), c.q), c.want)
	}
}
