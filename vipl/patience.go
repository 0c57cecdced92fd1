package vipl

// How long an acknowledgement waits for data to ride on. A frame that only
// acknowledges costs the way as much as one with an answer, and often a doorbell of its
// own. A program that answers one peer after the other takes longer for all of them than
// a lone one for its answer, and so does one whose CPU others share: so each connection
// learns from acknowledgements that went alone, and soon after which data went. The peer's
// timers follow what it sees of that, as long as the time does not grow by leaps, and is
// not one for a few answers among many: what is not used is unlearnt.

const (
	ackDelay = 50_000    // ns that an acknowledgement waits, when nothing is known
	ackCrowd = 150_000   // likewise where others wait, too: answers are being made, one after the other
	ackMost  = 2_000_000 // ns after which data is too late to wait for
	ackSoon  = 4_000     // ns that it waits at most when a descriptor of the peer waits for it
	crowd    = 4         // connections that owe acknowledgements
	unlearn  = 16        // part of the wait that is unlearnt
)

// patience of a connection. The zero value is that of a new one.
type patience struct {
	wait  int64 // ns, or 0: ackDelay
	since int64 // when it began to owe what waits for data; 0: nothing does
	due   int64 // until when that waits, unless something else makes it go
	alone int64 // since of an acknowledgement that has gone alone, as its time was over, and no data since; else 0
}

// owes notes that an acknowledgement is owed from now on, beside those of others, so
// many with it. It returns until when it waits.
func (a *patience) owes(now int64, all int) (by int64) {
	wait := max(a.wait, ackDelay)
	if all >= crowd {
		wait = max(wait, ackCrowd)
	}
	a.since, a.due = now, now+wait
	return a.due
}

// wentAlone notes that it goes without data. by is when it had to go: before due, when
// something else than the time made it go, which says nothing about waiting.
func (a *patience) wentAlone(by int64) {
	since := a.since
	a.since = 0
	switch {
	case since == 0 || by != a.due:
	case a.alone == 0:
		a.alone = since
	case since-a.alone > ackMost: // and still no data
		a.wait /= 2
		a.alone = since
	}
}

// pressed notes that the peer sent again what it could have had acknowledged.
func (a *patience) pressed() {
	a.wait /= 2
	a.since, a.alone = 0, 0
}

// dataGoes notes that data goes. It would have taken the acknowledgement with it
// that went alone first since the data before: if soon enough, it is worth waiting for.
// When all that was owed rides on data that is far sooner than was learnt, some of the
// time is unlearnt.
func (a *patience) dataGoes(now int64) {
	since, alone := a.since, a.alone
	a.since, a.alone = 0, 0
	wait := max(a.wait, ackDelay)
	switch took := now - alone; {
	case alone == 0:
		if since != 0 && now-since < wait/4 {
			a.wait = wait - (wait-ackDelay)/unlearn
		}
	case took > ackMost:
		a.wait = wait / 2
	default:
		a.wait = min(wait+wait/4, max(wait, took+took/4), ackMost)
	}
}
