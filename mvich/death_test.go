package mvich_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// dyingJob is a job in which ranks die. At the end the live ranks finalize, and the dead ones release what they still
// can.
func dyingJob(t *testing.T, n int, c jobConfig, dead ...int) *job {
	t.Helper()
	var more []mvich.Option // the same of all ranks
	if c.options != nil {
		more = c.options(0)
	}
	c.dying, c.options = true, with(append(more, mvich.WithSpin(50), mvich.WithConnectTimeout(calm))...)
	j := newJob(t, n, c)
	t.Cleanup(func() {
		for _, rank := range dead {
			j.worlds[rank].Finalize() // its NIC is closed or cut off: all that matters is that it ends
		}
	})
	return j
}

// finalize ends all ranks but the victim, and those that have left.
func (j *job) finalize(t *testing.T, victim int, left ...int) {
	t.Helper()
	each(t, len(j.worlds), func(rank int) error {
		if rank == victim || slices.Contains(left, rank) {
			return nil
		}
		return wantLost("finalize", j.worlds[rank].Finalize(), victim)
	})
}

func wantLost(what string, err error, rank int) error {
	var lost *mvich.RankError
	if !errors.As(err, &lost) || lost.Rank != rank {
		return fmt.Errorf("%s: %v, want the loss of rank %d", what, err, rank)
	}
	return nil
}

// death is how a rank dies.
type death struct {
	kill    func(j *job, rank int)
	silence time.Duration // short if it is what reveals the death, else 0
	faults  xdpnictest.Faults
}

// deaths are the ways in which a rank dies, each without a bye.
var deaths = map[string]death{
	"the NIC is closed":              {closed, 0, none},
	"no frame comes any more":        {cut, 5 * time.Second, none},
	"the NIC is closed, lossy":       {closed, 0, loss},
	"no frame comes any more, lossy": {cut, 5 * time.Second, loss},
}

func closed(j *job, rank int) { j.hosts[rank].NIC.Close() }
func cut(j *job, rank int)    { j.hosts[rank].Queue.Cut(true) }

// The death of a rank ends the operations of the others that involve it, and no others.
func TestDeath(t *testing.T) {
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { dies(t, death) }) })
	}
}

func dies(t *testing.T, death death) {
	const n, victim = 4, 3
	j := dyingJob(t, n, jobConfig{silence: death.silence, faults: death.faults, bubble: true}, victim)
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	var killed sync.WaitGroup
	killed.Go(func() {
		time.Sleep(20 * time.Millisecond)
		death.kill(j, victim)
	})
	each(t, victim, func(rank int) error {
		c := j.worlds[rank].Comm()
		b := make([]byte, 100000)
		onlyLiving := get(c.Irecv(make([]byte, 1), (rank+1)%victim, 7))
		named := get(c.Irecv(b, victim, 1))
		any := get(c.Irecv(b, mvich.AnySource, 1))
		sent := get(c.Issend(b, victim, 1))
		killed.Wait()
		for what, r := range map[string]*mvich.Request{"receive": named, "receive of anybody": any, "send": sent} {
			must(wantLost(what, nstest.Err(r.Wait()), victim))
		}
		must(wantLost("later send", c.Send(b, victim, 1), victim))
		must(wantLost("later exchange", nstest.Err(c.Sendrecv(b, victim, 1, b, victim, 1)), victim))
		must(wantLost("later receive of anybody", nstest.Err(c.Recv(b, mvich.AnySource, 2)), victim))
		must(wantLost("barrier", c.Barrier(), victim))
		dead, n := c.Dead(), j.worlds[rank].Stats().Deaths
		failIf(!slices.Equal(dead, []int{victim}) || n != 1, "dead: %v, %d counted", dead, n)
		// Live ranks go on.
		must(c.Send([]byte{1}, (rank+victim-1)%victim, 7))
		get(onlyLiving.Wait())
		c.Acknowledge(c.Dead())
		anybody := get(c.Irecv(make([]byte, 1), mvich.AnySource, 8))
		must(c.Send([]byte{1}, (rank+1)%victim, 8))
		return nstest.Err(anybody.Wait())
	})
	j.finalize(t, victim)
}

// A Sendrecv whose send fails leaves no live rank writing to the buffer of its receive.
func TestDeathInSendrecv(t *testing.T) {
	const n, victim, size = 3, 1, 100_000
	row := mvich.Contiguous(size, mvich.Elem)
	exchanges := map[string]func(c *mvich.Comm, b []byte) error{
		"bytes": func(c *mvich.Comm, b []byte) error { return nstest.Err(c.Sendrecv(nil, victim, 1, b, 2, 1)) },
		"a type": func(c *mvich.Comm, b []byte) error {
			return nstest.Err(mvich.SendrecvType(c, []byte{1}, mvich.Elem, victim, 1, b, row, 2, 1))
		},
	}
	run := func(t *testing.T, protocol mvich.Protocol, exchange func(c *mvich.Comm, b []byte) error) {
		j := dyingJob(t, n, jobConfig{bubble: true, options: with(mvich.WithProtocol(protocol))}, victim)
		j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
		closed(j, victim)
		each(t, n, func(rank int) error {
			c := j.worlds[rank].Comm()
			switch rank {
			case 2:
				sent := get(c.Isend(bytes.Repeat([]byte{'w'}, size), 0, 1))
				time.Sleep(time.Second) // its program computes
				get(sent.Wait())
				must(c.Send(nil, 0, 2)) // behind the data
			case 0:
				get(c.Probe(2, 1)) // or the send may fail before the receive has its message
				b := make([]byte, size)
				must(wantLost("the send", exchange(c, b), victim))
				clear(b)
				get(c.Recv(nil, 2, 2))
				nstest.ErrorIf(t, bytes.Contains(b, []byte("w")), "the buffer was written when the call was over")
			}
			return nil
		})
		j.finalize(t, victim)
	}
	for name, exchange := range exchanges {
		for _, protocol := range []mvich.Protocol{mvich.R3, mvich.RGET, mvich.RPUT} {
			t.Run(fmt.Sprint(name, " by ", protocol), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { run(t, protocol, exchange) })
			})
		}
	}
}

// A rank dies in the middle of collective operations. No other rank hangs, not even those that have no messages with
// it at that moment.
func TestDeathInCollective(t *testing.T) {
	for name, test := range map[string]struct {
		length int
		faults xdpnictest.Faults
	}{"short": {1, none}, "long": {20000, none}, "short, lossy": {1, loss}, "long, lossy": {20000, loss}} {
		t.Run(name, func(t *testing.T) {
			const n, victim = 5, 2
			j := dyingJob(t, n, jobConfig{faults: test.faults}, victim)
			each(t, n, func(rank int) error {
				c := j.worlds[rank].Comm()
				b := make([]float64, test.length)
				for turn := 0; ; turn++ {
					if rank == victim && turn == 20 {
						j.hosts[rank].NIC.Close()
						return nil
					}
					if err := mvich.AllReduce(c, b, b, mvich.Sum); err != nil {
						return wantLost("allreduce", err, victim)
					}
				}
			})
			j.finalize(t, victim)
		})
	}
}

// A rank that knows of a death does not answer an envelope of a collective operation. Its sender has given up and makes no
// more calls, so the data would never come.
func TestDeathBehindEnvelope(t *testing.T) {
	const n, victim, sender = 3, 1, 2
	for _, protocol := range []mvich.Protocol{mvich.R3, mvich.RGET, mvich.RPUT} {
		t.Run(fmt.Sprint(protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := dyingJob(t, n, jobConfig{bubble: true, options: with(mvich.WithProtocol(protocol))}, victim)
				j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
				each(t, n, func(rank int) error {
					c := j.worlds[rank].Comm()
					const length = 20_000
					gather := func() error { return mvich.AllGather(c, make([]float64, n*length), make([]float64, length)) }
					switch rank {
					case victim:
						time.Sleep(time.Second) // of virtual time, in which the offer comes
						closed(j, victim)
						return nil
					case sender: // offers its part to rank 0
						return wantLost("its operation", gather(), victim)
					}
					must(wantLost("the receive", nstest.Err(c.Recv(nil, victim, 1)), victim)) // the offer comes meanwhile
					return wantLost("the operation", gather(), victim)
				})
				j.finalize(t, victim)
			})
		})
	}
}

// A rank that gives up because of a death counts as dead, too. Operations that fail for both name the one that died
// first; operations that fail for the second alone name the second.
func TestRootCause(t *testing.T) {
	const n, victim, follower = 4, 3, 0
	j := dyingJob(t, n, jobConfig{}, victim, follower)
	j.run(t, func(c *mvich.Comm) error { // all are connected with all
		for k := 1; k < n; k++ {
			get(c.Sendrecv(nil, (c.Rank()+k)%n, 1, nil, (c.Rank()+n-k)%n, 1))
		}
		return nil
	})
	j.hosts[victim].NIC.Close()
	each(t, victim, func(rank int) error {
		return wantLost("receive", nstest.Err(j.worlds[rank].Comm().Recv(nil, victim, 1)), victim)
	})
	j.hosts[follower].NIC.Close()
	each(t, victim, func(rank int) error {
		if rank == follower {
			return nil
		}
		c := j.worlds[rank].Comm()
		err := nstest.Err(c.Recv(nil, follower, 1))
		must(wantLost("receive of the follower", err, follower))
		must(wantLost("its cause", errors.Unwrap(err), victim))
		must(wantLost("receive of anybody", nstest.Err(c.Recv(nil, mvich.AnySource, 1)), victim))
		must(wantLost("barrier", c.Barrier(), victim))
		return wantLost("finalize", j.worlds[rank].Finalize(), victim)
	})
}

// A rank that connects later learns of earlier deaths.
func TestLateConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { newsOfDeath(t, false) })
}

// Others learn of a death at once, even from a rank that makes no more calls.
func TestDeathIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { newsOfDeath(t, true) })
}

// newsOfDeath has rank 0 notice a death, and rank 1 learn of it, which is connected with rank 0 before or only later.
func newsOfDeath(t *testing.T, before bool) {
	const victim = 2
	j := dyingJob(t, 3, jobConfig{bubble: true}, victim)
	j.hosts[victim].NIC.Close()
	noticed, heard := make(chan struct{}), make(chan struct{})
	each(t, victim, func(rank int) error {
		c := j.worlds[rank].Comm()
		if before {
			get(c.Sendrecv(nil, 1-rank, 1, nil, 1-rank, 1))
		}
		if rank == 0 {
			err := wantLost("send", c.Send(nil, victim, 1), victim)
			close(noticed)
			if before {
				<-heard // without a call
				return err
			}
			return errors.Join(err, nstest.Err(c.Recv(nil, 1, 1)))
		}
		defer close(heard)
		if !before {
			<-noticed
			dead := c.Dead()
			failIf(len(dead) > 0, "dead before it has asked anybody: %v", dead)
			must(c.Send(nil, 0, 1))
		}
		for end := time.Now().Add(testTimeout / 2); !slices.Equal(c.Dead(), []int{victim}); time.Sleep(time.Millisecond) {
			failIf(time.Now().After(end), "dead: %v", c.Dead())
			c.Iprobe(0, 2) // progress
		}
		return nil
	})
	j.finalize(t, victim)
}

// During its admission, a rank gets the news of deaths in order, earlier ones and new ones, and a bye last. After a
// failed admission nothing is sent twice.
func TestNewsInOrder(t *testing.T) {
	j := dyingJob(t, 4, jobConfig{}, 0, 1, 2, 3)
	news, left, err := mvich.NewsOfAdmission(j.worlds[0], 1, 2, 3)
	noError(t, err)
	nstest.ErrorIf(t, !slices.Equal(news, []int{2, 3, -1}) || left > 0, "it is told %v, and %d of it again", news, left)
	for rank := 1; rank < 4; rank++ {
		j.hosts[rank].NIC.Close()
	}
}

// Closing the NIC under a world ends all that waits, including messages of a rank to itself.
func TestNICClosedUnderWorld(t *testing.T) {
	j := dyingJob(t, 1, jobConfig{}, 0)
	c := j.worlds[0].Comm()
	received, err := c.Irecv(make([]byte, 1), 0, 1)
	noError(t, err)
	sent, err := c.Issend([]byte{1}, 0, 2)
	noError(t, err)
	each(t, 3, func(goroutine int) error {
		var err error
		switch goroutine {
		case 0:
			time.Sleep(10 * time.Millisecond)
			return j.hosts[0].NIC.Close()
		case 1:
			_, err = c.Probe(0, 3)
		case 2:
			mustBe("receive", nstest.Err(received.Wait()), vipl.ErrInvalidParameter)
			mustBe("send", nstest.Err(sent.Wait()), vipl.ErrInvalidParameter)
			_, err = c.Recv(nil, mvich.AnySource, 4)
		}
		mustBe("a call of a closed NIC", err, vipl.ErrInvalidParameter)
		return nil
	})
}

// Stop ends what waits and what comes later, while other goroutines send without a pause. The other rank sees a death.
func TestStop(t *testing.T) {
	j := dyingJob(t, 2, jobConfig{}, 1)
	ended := errors.New("told to end")
	c := j.worlds[1].Comm()
	each(t, 4, func(goroutine int) (err error) {
		switch goroutine {
		case 0:
			time.Sleep(50 * time.Millisecond) // so that the others are in calls
			j.worlds[1].Stop(ended)
			return nil
		case 1:
			_, err = c.Recv(nil, 0, 1)
		case 2:
			for err == nil {
				err = c.Send(make([]byte, 3000), 0, 2)
			}
		case 3:
			buf := make([]byte, 3000)
			for err == nil {
				_, err = j.worlds[0].Comm().Recv(buf, 1, 2)
			}
			return wantLost("the other rank", err, 1)
		}
		mustBe(fmt.Sprint("call ", goroutine), err, ended)
		return nil
	})
	noError(t, j.hosts[1].NIC.Close()) // nobody uses its memory any more
	nstest.WantErr(t, "a send afterwards", c.Send(nil, 0, 1), ended)
	j.worlds[1].Stop(errors.New("again"))
	nstest.WantErr(t, "a receive after another Stop", nstest.Err(c.Recv(nil, 0, 1)), ended)
	j.finalize(t, 1)
}

// A rank leaves a communicator after the death of a rank outside of it. All members see it as dead, even those that
// wait for members which have failed and do not come back.
func TestLeaveAfterDeath(t *testing.T) {
	for name, operation := range map[string]func(c *mvich.Comm) error{
		"bcast":      func(c *mvich.Comm) error { return c.Bcast(make([]byte, 100), 0) },
		"long bcast": func(c *mvich.Comm) error { return c.Bcast(make([]byte, 1<<20), 0) },
		"allreduce":  func(c *mvich.Comm) error { b := make([]int, 10); return mvich.AllReduce(c, b, b, mvich.Sum) },
		"barrier":    (*mvich.Comm).Barrier,
		"long allreduce": func(c *mvich.Comm) error {
			b := make([]int, 10000)
			return mvich.AllReduce(c, b, b, mvich.Sum)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const n, victim, leaver, last = 5, 4, 0, 3
			j := dyingJob(t, n, jobConfig{}, victim)
			var subs [n]*mvich.Comm
			each(t, n, func(rank int) (err error) {
				color := 0
				if rank == victim {
					color = mvich.Undefined
				}
				subs[rank], err = j.worlds[rank].Comm().Split(color, 0)
				return err
			})
			j.hosts[victim].NIC.Close()
			through := make(chan struct{})
			each(t, victim, func(rank int) error {
				w := j.worlds[rank]
				if rank == leaver {
					_, err := w.Comm().Recv(nil, victim, 1)
					return errors.Join(wantLost("receive", err, victim), wantLost("finalize", w.Finalize(), victim))
				}
				err := wantLost("the operation", operation(subs[rank]), leaver)
				if rank == last {
					close(through)
				}
				<-through // without a call
				return errors.Join(err, wantLost("once more", operation(subs[rank]), leaver))
			})
			j.finalize(t, victim, leaver)
		})
	}
}

// An AnySource receive learns of ranks that leave after a death: they may have been all.
func TestAnybodyAfterDeath(t *testing.T) {
	const victim, leaver = 2, 1
	j := dyingJob(t, 3, jobConfig{}, victim)
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	j.hosts[victim].NIC.Close()
	acknowledged := make(chan struct{})
	each(t, victim, func(rank int) error {
		w := j.worlds[rank]
		c := w.Comm()
		must(wantLost("receive", nstest.Err(c.Recv(nil, victim, 1)), victim))
		if rank == leaver {
			<-acknowledged
			return wantLost("finalize", w.Finalize(), victim)
		}
		c.Acknowledge(c.Dead())
		close(acknowledged)
		must(wantLost("receive of anybody", nstest.Err(c.Recv(nil, mvich.AnySource, 1)), leaver))
		dead := c.Dead()
		failIf(!slices.Equal(dead, []int{leaver, victim}), "dead: %v", dead)
		return wantLost("finalize", w.Finalize(), victim)
	})
}

// A death between Dead and Acknowledge is not acknowledged with the earlier ones: AnySource receives report it. Nor
// can a death be acknowledged in advance.
func TestAcknowledgeWhatWasSeen(t *testing.T) {
	const first, second = 2, 1
	j := dyingJob(t, 3, jobConfig{}, first, second)
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	c := j.worlds[0].Comm()
	c.Acknowledge([]int{-1, 0, first, second, 3}) // none of them is dead, or exists
	lose := func(victim int) {
		t.Helper()
		j.hosts[victim].NIC.Close()
		_, err := c.Recv(nil, victim, 1)
		noError(t, wantLost("receive", err, victim))
	}
	lose(first)
	anybody := func() error {
		t.Helper()
		r, err := c.Irecv(nil, mvich.AnySource, 2)
		noError(t, err)
		if r.Cancel() {
			return nil // it would wait
		}
		return nstest.Err(r.Wait())
	}
	noError(t, wantLost("receive of anybody", anybody(), first))
	seen := c.Dead()
	lose(second)
	c.Acknowledge(seen)
	noError(t, wantLost("receive of anybody after a death that was not seen", anybody(), second))
	nstest.Same(t, "dead", c.Dead(), []int{second, first})
	c.Acknowledge(c.Dead())
	nstest.WantErr(t, "receive of anybody when all deaths are known", anybody(), nil)
	noError(t, wantLost("finalize", j.worlds[0].Finalize(), first))
}

// An abort ends the calls of all ranks of a process, also of those that the rank which aborts has no connection with, and those
// that wait in Init.
func TestLocalAbort(t *testing.T) {
	const n, aborts = 4, 3
	const text = "rank 3 has aborted the job with code 5"
	j := newJob(t, n, jobConfig{dying: true})
	each(t, n, func(rank int) error {
		w := j.worlds[rank]
		c := w.Comm()
		if rank == aborts {
			time.Sleep(20 * time.Millisecond)
			return w.Abort(5)
		}
		err := nstest.Err(c.Recv(nil, (rank+1)%aborts, 1))
		failIf(err == nil || !strings.Contains(err.Error(), text), "receive: %v", err)
		return nil
	})
	each(t, n, func(rank int) error { j.worlds[rank].Finalize(); return nil }) // it fails, and releases everything
	launchers := mvich.Local(2)
	each(t, 2, func(rank int) error {
		if rank == 1 {
			return launchers[rank].Abort(1)
		}
		failIf(nstest.Err(mvich.Init(j.hosts[0].NIC, launchers[rank])) == nil, "Init waits for no rank")
		return nil
	})
}
