package bench

import (
	"encoding/binary"
	"errors"
)

// viTransactions are sends in both directions.
type viTransactions struct{ v *vi }

func (t viTransactions) request(r Round, times []int64) (Span, error) {
	v, out := t.v, requestOf(r)
	total := r.Lead + r.Messages
	if err := v.admit(out); err != nil {
		return Span{}, err
	}
	if err := v.enter(r, viPingDepth, total, 0); err != nil {
		return Span{}, err
	}
	span, err := transact(r, times, func(i int) error {
		if err := v.send(i, out); err != nil {
			return err
		}
		// While the request travels, the last receive is posted anew.
		if i > 0 {
			if err := v.refill(i - 1 + viPingDepth); err != nil {
				return err
			}
		}
		return v.receive(i)
	})
	if err != nil {
		return Span{}, err
	}
	return span, v.drain()
}

func (t viTransactions) answer(r Round) (Span, error) {
	v := t.v
	total := r.Lead + r.Messages
	if err := v.admit(r); err != nil {
		return Span{}, err
	}
	if err := v.enter(requestOf(r), viPingDepth, total, 0); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	for i := range total {
		if err := v.receive(i); err != nil {
			return Span{}, err
		}
		if err := v.send(i, r); err != nil {
			return Span{}, err
		}
		if err := v.refill(i + viPingDepth); err != nil {
			return Span{}, err
		}
	}
	return clock.span(), v.drain()
}

// rdmaTransactions are requests that are sent and replies that are written into
// the client's memory. The client posts no receives and looks at the last word
// of the reply; see rdmaWrite for its place.
type rdmaTransactions struct{ w *rdmaWrite }

func (t rdmaTransactions) request(r Round, times []int64) (Span, error) {
	w, out := t.w, requestOf(r)
	if err := w.admit(out); err != nil {
		return Span{}, err
	}
	if err := w.enterPolling(r); err != nil {
		return Span{}, err
	}
	span, err := transact(r, times, func(i int) error {
		if err := w.send(i, out); err != nil {
			return err
		}
		return w.poll(i)
	})
	if err != nil {
		return Span{}, err
	}
	return span, w.drain()
}

func (t rdmaTransactions) answer(r Round) (Span, error) {
	w := t.w
	total := r.Lead + r.Messages
	if err := w.admit(r); err != nil {
		return Span{}, err
	}
	if err := w.enter(requestOf(r), viPingDepth, total, 0); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	for i := range total {
		if err := w.receive(i); err != nil {
			return Span{}, err
		}
		if err := w.reply(i, r); err != nil {
			return Span{}, err
		}
		if err := w.refill(i + viPingDepth); err != nil {
			return Span{}, err
		}
	}
	return clock.span(), w.drain()
}

// reply writes the reply to request i.
func (w *rdmaWrite) reply(i int, r Round) error {
	d, err := w.free()
	if err != nil {
		return err
	}
	end := slot(r.Bytes)
	from := end - r.Bytes
	if r.Check {
		copy(w.out.Bytes()[from:], content(i, 0, r.Bytes))
	}
	binary.BigEndian.PutUint64(w.out.Bytes()[end-wordBytes:], uint64(i+1))
	d.SetRDMAWrite(w.remoteAt(from), w.out.Segment(from, r.Bytes))
	return w.post()
}

// streamedTransactions are messages of a byte stream.
type streamedTransactions struct{ s *streamed }

// enter begins a round with messages of two sizes.
func (t streamedTransactions) enter(in, out Round) error {
	return errors.Join(t.s.enter(in), t.s.enter(out))
}

func (t streamedTransactions) request(r Round, times []int64) (Span, error) {
	out := requestOf(r)
	if err := t.enter(r, out); err != nil {
		return Span{}, err
	}
	return transact(r, times, func(i int) error {
		if err := t.s.send(out, i); err != nil {
			return err
		}
		return t.s.receive(r, i)
	})
}

func (t streamedTransactions) answer(r Round) (Span, error) {
	in := requestOf(r)
	if err := t.enter(in, r); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	for i := range r.Lead + r.Messages {
		if err := t.s.receive(in, i); err != nil {
			return Span{}, err
		}
		if err := t.s.send(r, i); err != nil {
			return Span{}, err
		}
	}
	return clock.span(), nil
}
