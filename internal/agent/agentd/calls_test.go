package agentd

import (
	"testing"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// ended is an exchange that records how it was ended.
type ended struct {
	kagent.Incoming
	kagent.Confirmation
	reason wire.CMReason
}

func (e *ended) Reject(reason wire.CMReason) error {
	e.reason = reason
	return nil
}

func (e *ended) Decline(reason wire.CMReason) { e.reason = reason }

// The other side of an exchange hears that a program has ended, which may come again, and not that it lacks something.
func TestReasonOfProgramsEnd(t *testing.T) {
	var in, answer, late, many ended
	c := &conn{handles: map[uint64]*handle{}}
	nstest.Must(t, c.hold(&handle{in: &in}))
	nstest.Must(t, c.hold(&handle{answer: &kagent.Answer{Confirmation: &answer}}))
	for range maxHandles - 2 {
		nstest.Must(t, c.hold(&handle{in: &ended{}}))
	}
	nstest.WantErr(t, "more than a program may have", c.hold(&handle{in: &many}), errHandles)
	nstest.Equal(t, "the reason for one too many", many.reason, wire.CMReasonResources)
	c.release()
	nstest.WantErr(t, "after the end", c.hold(&handle{in: &late}), errHandles)
	for _, e := range []*ended{&in, &answer, &late} {
		nstest.Equal(t, "the reason", e.reason, wire.CMReasonClosed)
	}
}
