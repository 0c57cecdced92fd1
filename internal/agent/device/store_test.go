package device

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// handOut gives the queue of a handle to this process, as if to another.
func handOut(t *testing.T, l *Local) {
	t.Helper()
	r, w, err := os.Pipe()
	nstest.Must(t, err)
	defer r.Close()
	defer w.Close()
	h, err := l.HandOut(nil, int(r.Fd()))
	nstest.Must(t, err)
	h.Close()
}

// The entries of an interface stay when those of another interface of its name, or of its own with another
// port, are removed: an interface may be removed, and come again, while a program has the old one's queue.
func TestKeptApart(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	fdStore := newFakeFDStore()
	cfg := small(an)
	cfg.Mode, cfg.Shared, cfg.FDStore = xdpnic.ModeGeneric, true, fdStore
	wants := func(index int, when string) {
		t.Helper()
		var nic nicRecord
		n := make(map[string]int)
		for key, value := range fdStore.all() {
			kind, _, _ := strings.Cut(key, "/")
			if n[kind]++; kind == "nic" {
				nstest.Check(t, json.Unmarshal(value, &nic))
			}
		}
		if n["nic"] != 1 || n["lease"] != 1 || n["vi"] != 1 || nic.Index != index || nic.Port != 4793 || !nic.Attached {
			t.Errorf("%s: kept are %v, and the interface as %+v; want one of each kind, of interface %d", when, n, nic, index)
		}
	}
	first := mustOpen(t, an, cfg)
	nstest.Must(t, nstest.Err(first.NewVI()))
	handOut(t, first)
	wants(an.Index, "at first")
	other := cfg
	other.Port = 4794
	if l, err := openOn(t, an, other); err == nil {
		l.Close()
		t.Error("the interface was opened with two ports")
	}
	wants(an.Index, "after another port was asked for")

	an.Remove(t)
	nstest.Rejoin(t, an, bn, nstest.Options{})
	second := mustOpen(t, an, cfg)
	nstest.Must(t, nstest.Err(second.NewVI()))
	handOut(t, second)
	nstest.Check(t, first.Close())
	wants(an.Index, "after the first interface's queue was given back")
	nstest.Check(t, second.Close())
	nstest.Equal(t, "things that are kept at the end", len(fdStore.all()), 0)
}

// A queue that processes share and that cannot be handed out for lack of descriptors leaves no memory, and no descriptor.
func TestHandOutWithoutDescriptors(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	r, w, err := os.Pipe()
	nstest.Must(t, err)
	defer fds.CloseFiles(r, w)
	cfg := small(an)
	cfg.Shared, cfg.Processes, cfg.Queue = true, 4, kagent.AnyQueue
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		nstest.Must(t, err)
		return len(all)
	}
	nstest.Check(t, mustOpen(t, an, cfg).Close())
	before := open()
	for free, done := 0, false; !done; free++ {
		l, err := openOn(t, an, cfg)
		nstest.Must(t, err)
		var h *Handout
		nstest.WithDescriptors(t, free, func() { h, err = l.HandOut(nil, int(r.Fd())) })
		if done = err == nil; done {
			h.Close()
		}
		nstest.ErrorIf(t, !done && !errors.Is(err, unix.EMFILE), "%d descriptors: %v", free, err)
		nstest.Check(t, l.Close())
		maps, err := os.ReadFile("/proc/self/maps")
		nstest.Must(t, err)
		nstest.ErrorIf(t, strings.Contains(string(maps), "memfd:via-xdp"), "%d descriptors: the memory is still mapped", free)
		await.Until(t, "as many descriptors as before", func() bool { return open() == before })
	}
}
