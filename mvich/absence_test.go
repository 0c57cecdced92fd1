package mvich_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/mvich"
	"viaxdp/vipl"
)

// A rank that dies before anybody has connected with it is noticed by who sends to it, and after a while by who
// receives from it.
func TestDeadBeforeConnection(t *testing.T) { synctest.Test(t, deadBeforeConnection) }

func deadBeforeConnection(t *testing.T) {
	const victim = 2
	j := dyingJob(t, 3, victim)
	j.hosts[victim].NIC.Close()
	each(t, victim, func(rank int) error {
		c := j.worlds[rank].Comm()
		if rank == 0 {
			return wantLost("send", c.Send(nil, victim, 1), victim)
		}
		return wantLost("receive", errOf(c.Recv(nil, victim, 1)), victim)
	})
	j.finalize(t, victim)
}

// It is also noticed by who waits for a message of it, by name or as one of all, in whatever way.
func TestDeadBeforeConnectionOtherwise(t *testing.T) {
	const n, victim = 5, 4
	again := func(f func() (done bool, err error)) (err error) {
		for done := false; !done && err == nil; {
			time.Sleep(time.Millisecond)
			done, err = f()
		}
		return err
	}
	ways := [victim]func(c *mvich.Comm, source int) error{ // none of which can tell another rank
		func(c *mvich.Comm, source int) error { _, err := c.Recv(nil, source, 1); return err },
		func(c *mvich.Comm, source int) error { _, err := c.Probe(source, 1); return err },
		func(c *mvich.Comm, source int) error {
			return again(func() (bool, error) { _, done, err := c.Iprobe(source, 1); return done, err })
		},
		func(c *mvich.Comm, source int) error {
			r := get(c.Irecv(nil, source, 1))
			return again(func() (bool, error) { _, done, err := r.Test(); return done, err })
		},
	}
	for _, source := range []int{victim, mvich.AnySource} {
		synctest.Test(t, func(t *testing.T) {
			j := dyingJob(t, n, victim)
			j.hosts[victim].NIC.Close()
			each(t, victim, func(rank int) error {
				return wantLost("wait", ways[rank](j.worlds[rank].Comm(), source), victim)
			})
			for rank, w := range j.worlds[:victim] {
				if s := w.Stats(); source == mvich.AnySource && s.Connections > 0 {
					t.Errorf("rank %d has connected: %+v", rank, s)
				}
			}
			j.finalize(t, victim)
		})
	}
}

// Nor does its host have to say that nobody is there.
func TestDeadBeforeConnectionSilent(t *testing.T) { synctest.Test(t, deadBeforeConnectionSilent) }

func deadBeforeConnectionSilent(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true, options: with(mvich.WithConnectTimeout(time.Second))})
	j.fabric.Cut(j.hosts[1].NIC.Query().Address, true)
	each(t, 1, func(int) error {
		return wantLost("receive of anybody", errOf(j.worlds[0].Comm().Recv(nil, mvich.AnySource, 1)), 1)
	})
	each(t, 2, func(rank int) error { return wantLost("finalize", j.worlds[rank].Finalize(), 1-rank) })
}

// A rank is dead when it does not listen for a while, as when its agent starts again, or when no request has come to
// anything for longer.
func TestVigil(t *testing.T) {
	const long = 10 * time.Second
	nobody, silent := vipl.ErrNoMatch, vipl.ErrTimeout
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			every time.Duration
			errs  []error
			dead  time.Duration
		}{
			"nobody listens": {time.Second, []error{nobody}, mvich.Absence + time.Second},
			"silent":         {time.Second, []error{silent}, long + time.Second},
			"in turn":        {time.Second, []error{nobody, silent}, long + time.Second},
		} {
			var v mvich.Vigil
			start := time.Now()
			for i := 0; !v.InVain(test.errs[i%len(test.errs)], 0, long); i++ {
				time.Sleep(test.every)
			}
			if took := time.Since(start); took != test.dead {
				t.Errorf("%s: dead after %v, want %v", name, took, test.dead)
			}
		}
		var v mvich.Vigil
		if !v.InVain(silent, long+1, long) {
			t.Error("one long request is not enough")
		}
	})
}

// Looks in vain are forgotten when nobody waits any more.
func TestLooksAreForgotten(t *testing.T) { synctest.Test(t, looksAreForgotten) }

func looksAreForgotten(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true})
	j.hosts[1].NIC.Close()
	w := j.worlds[0]
	mvich.LookAt(w, 1)
	if !mvich.Missed(w, 1) {
		t.Error("a look in vain is not noted")
	}
	mvich.LookAround(w)
	if mvich.Missed(w, 1) || w.Stats().Deaths > 0 {
		t.Errorf("it is remembered: %+v", w.Stats())
	}
	each(t, 2, func(rank int) error { j.worlds[rank].Finalize(); return nil })
}

// Who lives bears being looked at, and is connected with by nobody for it.
func TestLook(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	for range 5 {
		mvich.LookAt(j.worlds[0], 1)
	}
	for rank, w := range j.worlds {
		if s := w.Stats(); s.Connections > 0 || s.Deaths > 0 {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
}

// Who has stopped waiting for a rank does not connect with it.
func TestCallsWhomItWaitsFor(t *testing.T) {
	for name, test := range map[string]struct {
		want bool
		wait func(c *mvich.Comm) error
	}{
		"a receive": {true, func(c *mvich.Comm) error {
			r, err := c.Irecv(nil, 1, 1)
			if err == nil {
				t.Cleanup(func() { r.Cancel() })
			}
			return err
		}},
		"a receive that is cancelled": {false, func(c *mvich.Comm) error {
			r, err := c.Irecv(nil, 1, 1)
			if err == nil && !r.Cancel() {
				err = errors.New("it cannot be cancelled")
			}
			return err
		}},
		"a receive of anybody": {false, func(c *mvich.Comm) error {
			r, err := c.Irecv(nil, mvich.AnySource, 1)
			if err == nil {
				t.Cleanup(func() { r.Cancel() })
			}
			return err
		}},
		"one look": {false, func(c *mvich.Comm) error {
			_, _, err := c.Iprobe(1, 1)
			return err
		}},
		"two looks": {true, func(c *mvich.Comm) error {
			_, _, err := c.Iprobe(1, 1)
			_, _, again := c.Iprobe(1, 1)
			return errors.Join(err, again)
		}},
		"no more": {false, func(c *mvich.Comm) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 2, jobConfig{})
			if err := test.wait(j.worlds[0].Comm()); err != nil {
				t.Fatal(err)
			}
			if calls := mvich.CallsExpected(j.worlds[0], 1); calls != test.want {
				t.Errorf("calls: %v", calls)
			}
		})
	}
}
