package mpibench

import (
	"time"

	"viaxdp/mvich"
)

// What the benchmarks do.

const (
	tagData  = 1
	tagReply = 2
)

func (r *run) pingPong(size, count int) error {
	for range count {
		if r.sender {
			if err := r.c.Send(r.out[:size], r.partner, tagData); err != nil {
				return err
			}
		}
		if _, err := r.c.Recv(r.in[:size], r.partner, tagData); err != nil {
			return err
		}
		if !r.sender {
			if err := r.c.Send(r.out[:size], r.partner, tagData); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) oneWay(size, count int) error { return r.windows(size, count, r.sender, !r.sender) }

func (r *run) bothWays(size, count int) error { return r.windows(size, count, true, true) }

// windows sends and receives count windows of messages. The receiver confirms each window. As in OSU's benchmarks,
// all messages are sent from one buffer and received into one.
func (r *run) windows(size, count int, send, recv bool) error {
	begin := func(do bool, begin func() (*mvich.Request, error)) error {
		for i := 0; do && i < r.window; i++ {
			q, err := begin()
			if err != nil {
				return err
			}
			r.requests = append(r.requests, q)
		}
		return nil
	}
	for range count {
		r.requests = r.requests[:0]
		if err := begin(recv, func() (*mvich.Request, error) { return r.c.Irecv(r.in[:size], r.partner, tagData) }); err != nil {
			return err
		}
		if err := begin(send, func() (*mvich.Request, error) { return r.c.Isend(r.out[:size], r.partner, tagData) }); err != nil {
			return err
		}
		if err := mvich.WaitAll(r.requests...); err != nil {
			return err
		}
		if err := r.reply(!r.sender); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) reply(send bool) error {
	if send {
		return r.c.Send(r.out[:1], r.partner, tagReply)
	}
	_, err := r.c.Recv(r.in[:1], r.partner, tagReply)
	return err
}

func (r *run) allReduce(size, count int) error {
	for range count {
		if err := mvich.AllReduce(r.c, r.in[:size], r.out[:size], mvich.Sum); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) allToAll(size, count int) error {
	n := size * r.c.Size()
	for range count {
		if err := mvich.AllToAll(r.c, r.in[:n], r.out[:n]); err != nil {
			return err
		}
	}
	return nil
}

// halfRound is what a message there and back took, halved.
func (r *run) halfRound(_, count int, took time.Duration) Row {
	return Row{Time: micros(took) / float64(2*count)}
}

// each is what one iteration took.
func (r *run) each(_, count int, took time.Duration) Row {
	return Row{Time: micros(took) / float64(count)}
}

// bandwidth is what all pairs together have sent.
func (r *run) bandwidth(size, count int, took time.Duration) Row {
	messages := float64(count * r.window * (r.c.Size() / 2))
	if r.name == "bibw" {
		messages *= 2
	}
	return Row{MBps: messages * float64(size) / micros(took), Rate: messages / took.Seconds()}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
