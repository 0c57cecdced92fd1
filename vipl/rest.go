package vipl

// How often a stream that comes in is looked for. Whoever polls without a pause
// takes the line of the RX ring's index back for each frame from the CPU that
// writes it, which has to wait for that line: in copy mode the sender's, up to a
// quarter of the time that its kernel has for a frame. So in a stream the ring
// rests for a while between two looks.
//
// A rest is short beside what the stream has lasted, so that a burst is delayed
// by no more than an eighth of its length, and so short that the sender does
// not come to the end of its window. There is none where the program answers what
// comes, none where frames come so slowly that it gains nothing, and none at all
// with WithRest(false).

import "viaxdp/wire"

const (
	restMost  = 16_000 // ns
	restLeast = 1_000
	// restPart is the part of what a stream has lasted that it may rest, and the
	// part of its frames that the program may answer.
	restPart = 8
	// slowestStream is the time in ns between two frames of a stream, at most, and
	// streamGap a pause that is forgiven.
	slowestStream = 1_800
	streamGap     = 5_000
)

// influx is the stream that comes in.
type influx struct {
	since  int64 // when it began
	seen   int64 // when frames were found last
	frames int64 // since it began
	posts  int64 // of sends, likewise
}

// rest says how long the ring rests, off which n frames were just taken. Under the
// lock.
func (p *port) rest(n int, now int64) {
	before := p.rests.Load()
	asked := before != 0 && p.pkt.Flags&wire.FlagAckNow != 0 && p.pkt.Kind != wire.KindPack
	if until := uint64(p.influx.came(n, now, p.window, asked)); until != before {
		p.rests.Store(until)
	}
}

// rested says whether the ring may be looked at. Any goroutine.
func (p *port) rested() bool {
	until := p.rests.Load()
	return until == 0 || p.now() >= int64(until)
}

// came notes that n frames were found, and says until when the ring may rest: 0,
// if it may not. window is how many frames the sender may be ahead, and asked
// that it has sent as many and waits.
func (s *influx) came(n int, now int64, window int, asked bool) (until int64) {
	if asked || now-s.seen > int64(n)*slowestStream+streamGap || s.posts*restPart > s.frames {
		*s = influx{since: now, seen: now}
		return 0
	}
	s.seen = now
	s.frames += int64(n)
	pace := s.pace()
	if pace > slowestStream {
		return 0
	}
	rest := min((now-s.since)/restPart, restMost, pace*int64(window)/4)
	if rest < restLeast {
		return 0
	}
	return now + rest
}

// pace is the time between two frames.
func (s *influx) pace() int64 { return (s.seen - s.since) / max(s.frames, 1) }
