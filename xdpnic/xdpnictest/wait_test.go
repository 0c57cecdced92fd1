package xdpnictest_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		took := func(timeout time.Duration) time.Duration {
			start := time.Now()
			if err := b.Wait(timeout); err != nil {
				t.Error(err)
			}
			return time.Since(start)
		}
		if d := took(time.Second); d != time.Second {
			t.Errorf("time-out after %v", d)
		}
		if d := took(0); d != 0 {
			t.Errorf("no time took %v", d)
		}
		b.Wake()
		b.Wake()
		if d := took(time.Second); d != 0 {
			t.Errorf("after Wake: %v", d)
		}
		if d := took(time.Second); d != time.Second {
			t.Errorf("wakes added up: %v", d)
		}
		time.AfterFunc(time.Minute, b.Wake)
		if d := took(-1); d != time.Minute {
			t.Errorf("woken after %v", d)
		}
		time.AfterFunc(time.Minute, func() { sendAll(t, a, 0, 1) })
		if d := took(-1); d != time.Minute {
			t.Errorf("a frame woke after %v", d)
		}
		if d := took(-1); d != 0 {
			t.Errorf("with a frame there: %v", d)
		}
		receive(b)
		if d := took(time.Second); d != time.Second {
			t.Errorf("the last frame woke once more, after %v", d)
		}
	})
}

func TestFrameWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		var awake atomic.Int32
		for range 5 {
			go func() {
				if err := b.Wait(-1); err != nil {
					t.Error(err)
				}
				awake.Add(1)
			}()
		}
		synctest.Wait()
		sendAll(t, a, 0, 1)
		synctest.Wait()
		if n := awake.Load(); n != 5 {
			t.Errorf("%d awake", n)
		}
	})
}

func TestCloseEndsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := pair(t, xdpnictest.Config{})
		done := make(chan error)
		for range 2 {
			go func() { done <- b.Wait(-1) }()
		}
		synctest.Wait()
		b.Close()
		for range 2 {
			if err := <-done; err != xdpnic.ErrClosed {
				t.Error(err)
			}
		}
	})
}
