package vipl

// How often polls look for the frames of an incoming stream. A program that polls without a pause pulls the cache
// line of the RX ring's index back from the CPU that writes it, once for each frame. That CPU then waits for the
// line. In copy mode it is the sender's CPU, and the wait is up to a quarter of the time that its kernel spends on
// a frame. So during a stream polls leave the ring alone for a while: a poll pause.
//
// A pause is short compared with the stream so far, so that a burst is delayed by at most an eighth of its length.
// It is also so short that the sender does not reach the end of its window. There is no pause if the program
// answers what arrives, if frames arrive so slowly that a pause gains nothing, or with WithPollPause(false).

import (
	"viaxdp/internal/base/ordered"
	"viaxdp/internal/base/wire"
)

const (
	pauseMost  = 16_000 // ns
	pauseLeast = 1_000
	// pausePart bounds a pause to this part of the stream's duration so far, and the sends of the program to this
	// part of the stream's messages.
	pausePart = 8
	// slowestStream is the longest time in ns between two frames of a stream, on average. streamGap is added to it
	// as tolerance.
	slowestStream = 1_800
	streamGap     = 5_000
)

// pollPause leaves the RX ring alone for a while.
type pollPause struct {
	off    bool           // every poll looks at the ring
	until  ordered.Uint64 // time until which polls leave the ring alone, ns; 0: they do not
	stream influx
}

// disable makes every poll look at the ring if off is true.
func (s *pollPause) disable(off bool) { s.off = off }

// posted records that the program has posted a send.
func (s *pollPause) posted() { s.stream.posts++ }

// arrived records that a message has arrived, or several in one frame.
func (s *pollPause) arrived() { s.stream.messages++ }

// influx is the state of the incoming stream.
type influx struct {
	since    int64 // when it began
	seen     int64 // when frames were last found
	frames   int64 // frames since it began
	messages int64 // messages since it began; those in one frame count as one
	posts    int64 // sends posted since it began
}

// pausePolling decides how long polls leave the ring alone after n frames were taken off it. Under the lock.
func (p *port) pausePolling(n int, now int64) {
	before := p.poller.pause.until.Load()
	asked := before != 0 && p.rx.pkt.Flags&(wire.FlagAckNow|wire.FlagAckSoon) != 0 && p.rx.pkt.Kind != wire.KindPack
	if until := uint64(p.poller.pause.stream.came(n, now, p.shares.window, asked)); until != before {
		p.poller.pause.until.Store(until)
	}
}

// mayPoll reports whether the ring may be polled. Any goroutine.
func (p *port) mayPoll() bool {
	until := p.poller.pause.until.Load()
	return until == 0 || p.now() >= int64(until)
}

// came records that n frames were found, and returns until when polls may pause; 0: they may not. window is the
// number of frames that the sender may be ahead. asked means that the sender waits for an
// acknowledgement, because it has sent that many or all that it has.
func (s *influx) came(n int, now int64, window int, asked bool) (until int64) {
	if asked || now-s.seen > int64(n)*slowestStream+streamGap || s.posts*pausePart > s.messages {
		*s = influx{since: now, seen: now}
		return 0
	}
	s.seen = now
	s.frames += int64(n)
	pace := s.pace()
	if pace > slowestStream {
		return 0
	}
	rest := min((now-s.since)/pausePart, pauseMost, pace*int64(window)/4)
	if rest < pauseLeast {
		return 0
	}
	return now + rest
}

// pace returns the average time between two frames.
func (s *influx) pace() int64 { return (s.seen - s.since) / max(s.frames, 1) }
