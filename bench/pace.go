package bench

import "time"

// A pace sizes the rounds of a measurement, each by the speed of the one before, so
// that those that count take a given time together, or have a given number of
// messages.
type pace struct {
	duration time.Duration // of the rounds that count
	messages int           // that count, instead of duration; 0: by duration
	least    int           // messages that count at least, however long it takes
	check    bool          // verify every byte, not only those of the warm-up
	round    uint16        // the ID of the last round
}

// Warm-up of a measurement: first a few messages whose bytes are checked, then
// ever more until it has lasted a part of the measurement.
const (
	warmMessages = 8
	warmPart     = 6 // of the duration
)

// Each counted round of a ping-pong is led in by messages that do not count, for
// some time: after a pause Go's monitor thread wakes up fifty times, 20 us and what
// its timer adds apart, before it looks less often, and then stops a thread that
// polls on the same CPU for some 12 us each time (runtime.sysmon). Without it these
// were more than one in a hundred of the messages of a short round.
const (
	leadMessages = 16 // at least
	leadTime     = 6 * time.Millisecond
)

// LeadIn is about how much longer a ping-pong takes than its duration and warm-up:
// what leads in its rounds.
func LeadIn(duration time.Duration) time.Duration {
	return max(roundPart, duration/maxRoundTime) * leadTime
}

// leads is the number of messages that lead in, at a cost of per each.
func leads(per time.Duration) int {
	return min(max(leadMessages, int(leadTime/per)), maxRound)
}

// A measurement consists of several rounds, each of them sized by the speed of
// the one before: at least roundPart of them, and none longer than
// maxRoundTime.
const (
	roundPart    = 4
	maxRoundTime = time.Second
)

// measure runs rounds of at most limit messages of a size: the warm-up, and then
// those that count until the duration is over or the messages are sent. lead, which
// may be nil, gives the number of messages that lead in a round that counts, by the
// time that one takes. Without a duration the first of these rounds has fewer than it
// should: the warm-up is then the first messages alone, cold and checked, and a
// message took longer there.
func (p *pace) measure(bytes, limit int, lead func(per time.Duration) int, round func(_ Round, count bool) (Span, error)) error {
	var per time.Duration // of one message
	next := func(messages int, check, count bool) (time.Duration, error) {
		p.round++
		it := Round{ID: p.round, Bytes: bytes, Messages: messages, Check: check || p.check}
		if count && lead != nil {
			it.Lead = lead(per)
		}
		span, err := round(it, count)
		per = max(span.Wall/time.Duration(it.Lead+messages), 1)
		return span.Wall, err
	}
	var warm time.Duration
	warming := p.duration / warmPart
	for n := warmMessages; ; n = min(2*n, limit) {
		wall, err := next(n, n == warmMessages, false)
		if err != nil {
			return err
		}
		if warm += wall; warm >= warming {
			break
		}
	}
	// However long the warm-up took, what counts has its time.
	spent := warming
	for sent := 0; !p.enough(sent, spent); {
		n := p.share(sent, spent, per, limit)
		if _, err := next(n, false, true); err != nil {
			return err
		}
		spent += time.Duration(n) * per // without what led in
		sent += n
	}
	return nil
}

// enough says that a measurement is over.
func (p *pace) enough(sent int, spent time.Duration) bool {
	if p.messages > 0 {
		return sent >= p.messages
	}
	// A rest of a few messages is not worth a round.
	return sent > 0 && sent >= p.least && spent+spent/16 >= p.duration
}

// share is the number of messages of the next round, at a cost of per each.
func (p *pace) share(sent int, spent, per time.Duration, limit int) int {
	if p.messages > 0 {
		n := max(min(limit, int(maxRoundTime/per)), min(warmMessages, limit))
		return min(n, p.messages-sent)
	}
	n := int((p.duration - spent) / per)
	if rest := p.least - sent; n < rest {
		n = min(rest, int(maxRoundTime/per))
	} else {
		n = min(n, int(min(maxRoundTime, p.duration/roundPart)/per))
	}
	return max(min(n, limit), min(warmMessages, limit))
}
