package vipl

// How long an acknowledgement waits for data to ride on. A frame that only
// acknowledges costs the way as much as one with an answer, and often a doorbell of its
// own. A program that answers one peer after the other takes longer for all of them than
// a lone one for its answer, and so does one whose CPU others share: so each connection
// learns from acknowledgements that went alone, and soon after which data went. The peer's
// timers follow what it sees of that, as long as the time does not grow by leaps.

const (
	ackDelay = 50_000    // ns that an acknowledgement waits, when nothing is known
	ackCrowd = 150_000   // likewise where others wait, too: answers are being made, one after the other
	ackMost  = 2_000_000 // ns after which data is too late to wait for
	ackSoon  = 4_000     // ns that it waits at most when a descriptor of the peer waits for it
	crowd    = 4         // connections that owe acknowledgements
)

// patience of a connection. The zero value is that of a new one.
type patience struct {
	wait  int64 // ns, or 0: ackDelay
	since int64 // when it began to owe what it owes, or owed last
	alone int64 // since of an acknowledgement that has gone alone, as its time was over, and no data since; else 0
}

// owes notes that an acknowledgement is owed from now on, beside those of others, so
// many with it. It returns until when it waits.
func (a *patience) owes(now int64, all int) (by int64) {
	a.since = now
	wait := max(a.wait, ackDelay)
	if all >= crowd {
		wait = max(wait, ackCrowd)
	}
	return now + wait
}

// wentAlone notes that it goes without data. by is when it had to go.
func (a *patience) wentAlone(by int64) {
	if a.alone == 0 && by-a.since >= ackDelay {
		a.alone = a.since
	}
}

// dataGoes notes that data goes. It would have taken the acknowledgement with it
// that went alone first since the data before: if soon enough, it is worth waiting for.
func (a *patience) dataGoes(now int64) {
	if a.alone == 0 {
		return
	}
	wait, took := max(a.wait, ackDelay), now-a.alone
	a.alone = 0
	if took > ackMost {
		a.wait = wait / 2
		return
	}
	a.wait = min(wait+wait/4, max(wait, took+took/4), ackMost)
}
