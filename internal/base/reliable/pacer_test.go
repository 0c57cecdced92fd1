package reliable

import (
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// In no interval does a pacer let more frames go than a burst and what the rate allows, and while there is something
// to send it lets nearly that rate go, in groups.
func TestPacer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pacer
		trip := rapid.Int64Range(shortPath, maxTimeout).Draw(t, "trip")
		least := int64(paceBurst)
		if trip > longPath {
			least = paceLong
		}
		rate := rapid.Int64Range((least+1)*fraction, MaxWindow*fraction).Draw(t, "rate")
		now, begun := int64(1), int64(1)
		p.set(rate, trip, now)
		sent := 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			p.fill(now, rate, trip, true)
			group := 0
			for p.due == 0 {
				p.take(now, rate, trip)
				group++
			}
			sent += group
			if group > paceBurst || group > 0 && group < int(p.group)-1 {
				t.Fatalf("%d frames at once", group)
			}
			most := float64(now-begun)*float64(rate)/float64(trip)/fraction + paceBurst
			if float64(sent) > most+1 || p.due < now {
				t.Fatalf("%d frames after %d ns, at most %.1f; due %d ns later", sent, now-begun, most, p.due-now)
			}
			if float64(sent) < most-paceBurst-float64(p.group)-2 {
				t.Fatalf("%d frames after %d ns, of %.1f", sent, now-begun, most)
			}
			switch rapid.IntRange(0, 2).Draw(t, "next") {
			case 0:
				now = p.due
			case 1:
				now += rapid.Int64Range(0, p.due-now).Draw(t, "early")
			case 2: // in time, so that no credit is lost
				now = p.due + trip*p.group*fraction/rate/2
			}
		}
	})
}

// A large window on a long path leaves spread over the round trip, and a message that follows silence leaves at once.
// A Sender that waits for its credit has a deadline.
func TestPacedWindow(t *testing.T) {
	const trip = 10_000_000
	s, now := NewSender(1, 4096), int64(1)
	flight := func() (sent, most, groups int) {
		end := now + trip
		for sent < s.window()-1 && now < end {
			group := 0
			for s.Pace(now); s.Room() > 0; group++ {
				s.Send(now, 0, 1)
			}
			sent, most, groups = sent+group, max(most, group), groups+1
			due := s.Deadline()
			nstest.FatalIf(t, s.pacer.due != 0 && (due == 0 || due > now+trip), "a deadline after %d ns", due-now)
			now = min(due, end)
		}
		if s.pacer.due != 0 && s.pacer.due < end {
			s.Pace(s.pacer.due)
		}
		now = end
		s.Ack(now, s.Next(), 4096)
		return sent, most, groups
	}
	for range 8 {
		flight()
	}
	if sent, most, groups := flight(); sent < 3000 || most > 2*paceGroup+1 || groups < sent/(2*paceGroup) {
		t.Errorf("%d frames in %d groups of up to %d", sent, groups, most)
	}
	now += trip
	s.Pace(now)
	for range paceBurst - 1 {
		nstest.FatalIf(t, s.Room() == 0, "a burst after silence is paced")
		s.Send(now, 0, 1)
	}
}

// The rate does not depend on how often the sender is told the time, also if less than a unit of credit grows in between.
func TestPacerToldOften(t *testing.T) {
	const trip, trips = 10_000_000, 20
	for _, frames := range []int64{9, 16, 64, 200, 1024} {
		for _, step := range []int64{70, 1_000, 10_000, 100_000} {
			rate := frames * fraction * 5 / 4
			var p pacer
			now, sent := int64(1), int64(0)
			p.set(frames*fraction, trip, now)
			p.credit = 0
			for end := now + trips*trip; now < end; now += step {
				p.fill(now, rate, trip, true)
				for p.due == 0 {
					p.take(now, rate, trip)
					sent++
				}
			}
			if want := frames * 5 / 4 * trips; sent < want*95/100 || sent > want*105/100+2*p.group {
				t.Errorf("window %d, each %d ns: %d frames, want %d", frames, step, sent, want)
			}
		}
	}
}

// On a long path a group is a 64th of the window, and a stream may gather the credit of two. Elsewhere it is a packet
// of segmentation offload.
func TestGroupOfAWindow(t *testing.T) {
	for _, c := range []struct{ frames, least, group, depth int64 }{
		{9, longPath + 1, 1, 2}, {127, longPath + 1, 1, 2}, {128, longPath + 1, 2, 4}, {640, longPath + 1, 10, 20},
		{4096, longPath + 1, paceGroup, 2 * paceGroup}, {640, longPath, paceGroup, paceBurst},
	} {
		var p pacer
		p.set(c.frames*fraction, c.least, 1)
		nstest.ErrorIf(t, !p.on || p.group != c.group || p.depth != c.depth*fraction,
			"%+v: on %v, group %d, depth %d", c, p.on, p.group, p.depth/fraction)
	}
}

// A sender that wakes up late on a long path sends what could have left since then, up to a burst. What the
// window has kept back is no such time. Silence gives the credit of a burst.
func TestPacerWokenLate(t *testing.T) {
	const frames, trip = 1024, 10_000_000
	for _, c := range []struct {
		what       string
		trip, late int64
		open       bool
		want       int64 // frames of credit
	}{
		{"in time", trip, 0, true, frames / paceShare},
		{"0.3 ms late", trip, trip / 32, true, frames/paceShare + frames/32},
		{"1 ms late", trip, trip / 10, true, paceBurst},
		{"half a round trip late", trip, trip / 2, true, paceBurst},
		{"by the window", trip, trip / 2, false, 2 * frames / paceShare},
		{"after silence", trip, 2 * trip, false, paceBurst},
		{"on a short path", longPath, longPath / 2, true, paceBurst},
	} {
		var p pacer
		p.set(frames*fraction, c.trip, 1)
		p.credit = 0
		p.take(1, frames*fraction, c.trip)
		p.fill(p.due+c.late, frames*fraction, c.trip, c.open)
		got := p.credit / fraction
		nstest.ErrorIf(t, got < c.want-1 || got > c.want || p.due != 0, "%s: credit of %d frames, want %d", c.what, got, c.want)
	}
}

// Where another flow keeps a long queue full, frames leave as on a long path, also if few are in flight. Afterwards, and
// in a short queue, they are not paced.
func TestPacedWhileCompeting(t *testing.T) {
	const trip, shortQueue, longQueue = 40_000, paceQueue - 1, paceQueue + 1_000_000
	s, now := NewSender(1, 4096), int64(1)
	round := func(trip int64) {
		for range 16 {
			for s.Pace(now); s.Room() > 0 && s.Outstanding() < 16; {
				s.Send(now, 0, 1)
			}
			now += trip
			s.Ack(now, s.Next(), 4096)
		}
	}
	round(trip)
	nstest.FatalIf(t, s.pacer.on, "a short path is paced")
	s.competing = true
	s.cwnd, s.threshold = 16*fraction, 16*fraction
	for _, queue := range []int64{shortQueue, longQueue} {
		for range 4 { // until the smoothed round trip is that
			round(queue)
		}
		if want := queue > paceQueue; !s.competing || s.pacer.on != want || want && s.pacer.group != 1 {
			t.Fatalf("competes %v in a queue of %d ns: paced %v, groups of %d", s.competing, queue, s.pacer.on, s.pacer.group)
		}
	}
	round(trip)
	nstest.FatalIf(t, s.competing || s.pacer.on, "competes %v: still paced %v", s.competing, s.pacer.on)
}

// What opens a closed window releases no more than a stream may gather: an acknowledgement, ranges of one, or room that the
// peer has again.
func TestPacedAfterClosedWindow(t *testing.T) {
	const trip = 10_000_000
	for what, open := range map[string]func(s *Sender, now int64){
		"acknowledgement": func(s *Sender, now int64) { s.Ack(now, s.Next(), 4096) },
		"ranges": func(s *Sender, now int64) {
			una := s.Unacked()
			s.Ack(now, una, 4096)
			s.AckRanges(now, una, []Range{{una + 1, s.Next()}})
		},
		"ranges of an old one": func(s *Sender, now int64) {
			una := s.Unacked()
			s.Ack(now, una-1, 4096)
			s.AckRanges(now, una-1, []Range{{una + 1, s.Next()}})
		},
		"the peer's window": func(s *Sender, now int64) { s.Ack(now, s.Unacked(), 4096) },
	} {
		s, now := NewSender(1, 4096), int64(1)
		group := func() (n int) {
			for s.Pace(now); s.Room() > 0; n++ {
				s.Send(now, 0, 1)
			}
			return n
		}
		for range 8 {
			for end := now + trip; s.room() > 0; now = min(s.Deadline(), end) {
				group()
			}
			now += trip
			s.Ack(now, s.Next(), 4096)
		}
		if what == "the peer's window" { // which is full before this side's
			for end := now + trip; s.Outstanding() < s.window()*5/8; now = min(s.Deadline(), end) {
				group()
			}
			s.Ack(now, s.Unacked(), s.Outstanding())
		}
		for end := now + trip; s.room() > 0; now = min(s.Deadline(), end) {
			group()
		}
		s.pacer.credit, s.pacer.due = 0, now+1 // as if the last frame had used up the credit
		nstest.FatalIf(t, s.window()/2 <= 2*int(s.pacer.group)+1, "%s: a window of only %d frames", what, s.window())
		now += trip * 3 / 4
		open(s, now)
		room := s.room()
		nstest.FatalIf(t, room <= 2*int(s.pacer.group)+1, "%s: room for only %d frames", what, room)
		if n, most := group(), 2*int(s.pacer.group)+1; n > most {
			t.Errorf("%s: %d frames at once, at most %d", what, n, most)
		}
	}
}

// The credit of a late sender that is left over does not outlive the silence after the stream: then a burst leaves at once.
func TestLateCreditEndsInSilence(t *testing.T) {
	const frames, trip = 1024, 10_000_000
	var p pacer
	p.set(frames*fraction, trip, 1)
	p.credit = 0
	p.take(1, frames*fraction, trip)
	now := p.due + trip/2
	p.fill(now, frames*fraction, trip, true)
	for range 10 { // the end of a message
		p.take(now, frames*fraction, trip)
	}
	left := int64(paceBurst - 10)
	if got := p.credit / fraction; got < left-1 || got > left || left <= 2*p.group {
		t.Fatalf("credit of %d frames, want %d", got, left)
	}
	p.fill(now+trip-1, frames*fraction, trip, true)
	if got := p.credit / fraction; got < left-1 {
		t.Errorf("before the end of the round trip: credit of %d frames, want %d", got, left)
	}
	p.fill(now+100*trip, frames*fraction, trip, true)
	if got := p.credit / fraction; got != paceBurst {
		t.Errorf("after silence: credit of %d frames, want %d", got, paceBurst)
	}
}
