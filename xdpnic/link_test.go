package xdpnic

import (
	"errors"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// A veth's carrier is its peer: it goes when the peer is taken down.
func TestRunning(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	set := func(up bool) {
		t.Helper()
		l, err := b.Netlink().LinkByIndex(b.Index)
		if err == nil && up {
			err = b.Netlink().LinkSetUp(l)
		} else if err == nil {
			err = b.Netlink().LinkSetDown(l)
		}
		must(t, err)
	}
	noError(t, a.Do(func() error {
		if !AwaitRunning(a.Index, waitLimit) {
			return errors.New("a veth with its peer up is not running")
		}
		set(false)
		if ok, err := Running(a.Index); ok || err != nil {
			return errors.Join(errors.New("a veth with its peer down is running"), err)
		}
		if AwaitRunning(a.Index, time.Millisecond) {
			return errors.New("it came back by itself")
		}
		set(true)
		if !AwaitRunning(a.Index, waitLimit) {
			return errors.New("it did not come back")
		}
		if _, err := Running(1 << 30); err == nil {
			return errors.New("an interface that is not there: no error")
		}
		return nil
	}))
}
