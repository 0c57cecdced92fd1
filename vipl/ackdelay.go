package vipl

// How long an acknowledgement is delayed so that data can carry it. A bare acknowledgement costs as much on the
// path as an answer, and often a doorbell of its own. A program that answers several peers in turn, or that shares
// its CPU, takes longer to answer than one that serves a single peer. So each connection estimates the delay from
// acknowledgements that were sent bare shortly before data. The peer's retransmission timer adapts to the delay
// that it measures, provided that the delay grows gradually and does not apply to only a few answers among many. A
// delay that is not needed decays.

const (
	defaultAckDelay = 50_000    // ns: the delay before anything is known
	sharedAckDelay  = 150_000   // ns: the least delay while sharedAcks connections owe acknowledgements, since the program answers them in turn
	ackMost         = 2_000_000 // ns: data that comes later than this is not worth a delay
	ackSoon         = 4_000     // ns: the longest delay when a descriptor of the peer is waiting for the acknowledgement
	sharedAcks      = 4         // connections that owe acknowledgements before sharedAckDelay applies
	unlearn         = 16        // 1/unlearn of the delay decays at a time
)

// ackDelay estimates the acknowledgement delay of one connection. The zero value is that of a new connection.
type ackDelay struct {
	wait  int64 // ns; 0: defaultAckDelay
	since int64 // time at which the pending acknowledgement became owed; 0: none is pending
	due   int64 // time until which it is delayed, unless something else sends it
	alone int64 // since of the first acknowledgement that was sent bare after its full delay, with no data sent after it; 0: none
}

// begin records that an acknowledgement is owed from now on. all is the number of connections that owe one, this
// one included. It returns the time until which the acknowledgement is delayed.
func (a *ackDelay) begin(now int64, all int) (by int64) {
	wait := max(a.wait, defaultAckDelay)
	if all >= sharedAcks {
		wait = max(wait, sharedAckDelay)
	}
	a.since, a.due = now, now+wait
	return a.due
}

// wentAlone records that the acknowledgement is sent without data. by is the time at which it had to be sent.
// If by is before due, something other than the delay forced it; the delay is then not adjusted.
func (a *ackDelay) wentAlone(by int64) {
	since := a.since
	a.since = 0
	switch {
	case since == 0 || by != a.due:
	case a.alone == 0:
		a.alone = since
	case since-a.alone > ackMost: // still no data was sent
		a.wait /= 2
		a.alone = since
	}
}

// pressed records that the peer retransmitted a frame that could already have been acknowledged.
func (a *ackDelay) pressed() {
	a.wait /= 2
	a.since, a.alone = 0, 0
}

// dataGoes records that data is sent. It could have carried the first bare acknowledgement since the previous data.
// If it comes soon enough after that one, the delay grows to cover the gap. If data carries the pending
// acknowledgement much sooner than the estimate, the estimate decays.
func (a *ackDelay) dataGoes(now int64) {
	since, alone := a.since, a.alone
	a.since, a.alone = 0, 0
	wait := max(a.wait, defaultAckDelay)
	switch took := now - alone; {
	case alone == 0:
		if since != 0 && now-since < wait/4 {
			a.wait = wait - (wait-defaultAckDelay)/unlearn
		}
	case took > ackMost:
		a.wait = wait / 2
	default:
		a.wait = min(wait+wait/4, max(wait, took+took/4), ackMost)
	}
}
