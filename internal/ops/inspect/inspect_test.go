package inspect_test

import (
	"slices"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/inspect"
)

// A veth has both copying modes and no zero-copy. Look tries them only if try is set, and
// leaves nothing behind.
func TestLook(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	look := func(try bool) inspect.Interface {
		t.Helper()
		return nstest.In(t, ns, func() (inspect.Interface, error) { return inspect.Look(ns.Name, try) })
	}
	tried := look(true)
	reached := map[string]bool{}
	for _, m := range tried.Modes {
		reached[m.Mode] = m.Reached
		nstest.ErrorIf(t, !m.Tried || m.Reached != (m.Reason == ""), "%+v", m)
	}
	nstest.ErrorIf(t, !reached["native"] || !reached["generic"] || reached["zero-copy"] || len(reached) != 3,
		"reached: %v", tried.Modes)
	left := look(false)
	if left.Name != ns.Name || left.Index != ns.Index || left.MAC != ns.MAC.String() || left.MTU != 1500 || !left.Up ||
		left.Driver != "veth" || left.Queues.RX != 2 || left.Queues.TX != 2 || left.Program != "" || len(left.Limits) < 3 {
		t.Errorf("%+v", left)
	}
	nstest.ErrorIf(t, slices.ContainsFunc(left.Modes, func(m inspect.Mode) bool { return m.Tried || m.Reached }),
		"tried: %v", left.Modes)
	err := ns.Do(func() error {
		names, err := inspect.Names(0)
		// Modules of tunnels put interfaces of their own into every namespace.
		nstest.ErrorIf(t, err == nil && (!slices.Contains(names, ns.Name) || slices.Contains(names, "lo")), "%v", names)
		return err
	})
	nstest.Must(t, err)
	if err := ns.Do(func() error { _, err := inspect.Look("nothing", false); return err }); err == nil {
		t.Error("an interface that is not there")
	}
}
