package device

import (
	"context"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// What lingers is there after Close, and is gone after EndLinger; an Open without a Linger leaves none.
func TestEndLinger(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	use := func(linger time.Duration) {
		t.Helper()
		var l *Local
		if err := ns.Do(func() (err error) {
			l, err = OpenContext(context.Background(), Config{
				Config: kagent.Config{Interface: ns.Name, Queue: kagent.AnyQueue, ArenaBytes: 8 << 20}, Linger: linger,
			})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	attached := func(want bool) {
		t.Helper()
		nic, err := ns.Netlink().LinkByIndex(ns.Index)
		if err != nil {
			t.Fatal(err)
		}
		if x := nic.Attrs().Xdp; (x != nil && x.Attached) != want {
			t.Errorf("XDP %+v, want a program: %v", x, want)
		}
		if n := len(LocalStatus().NICs); (n == 1) != want {
			t.Errorf("%d interfaces are open, want one: %v", n, want)
		}
	}
	use(time.Hour)
	attached(true)
	use(time.Hour)
	attached(true)
	if err := EndLinger(); err != nil {
		t.Error(err)
	}
	attached(false)
	use(time.Hour)
	use(0)
	attached(false)
}
