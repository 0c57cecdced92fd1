package inspect

import (
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// If the kernel does not report the driver's features, trying finds them: a mode that
// was reached has no reason left why it might not work.
func TestTryUntold(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	i := Interface{Name: ns.Name, Index: ns.Index, MTU: ns.MTU}
	i.modes(xdpnic.Features{}, false)
	for _, m := range i.Modes[:2] {
		nstest.ErrorIf(t, m.Possible || m.Reason == "", "before it was tried: %+v", m)
	}
	nstest.Must(t, ns.Do(func() error { i.try(); return nil }))
	for _, m := range i.Modes {
		copies := m.Mode != xdpnic.ModeZeroCopy.String() // a veth has no other
		nstest.ErrorIf(t, !m.Tried || m.Reached != copies || m.Reached != (m.Reason == ""), "%+v", m)
	}
}
