package mvich_test

import (
	"fmt"
	"testing"

	"viaxdp/hugepages"
	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/vipl"
)

// Two ranks on both ends of a veth pair: every size, credits that run out, and collective operations.
func TestVeth(t *testing.T) {
	for name, mtu := range map[string]int{"1500": 1500, "9000": 9000} {
		t.Run(name, func(t *testing.T) {
			a, b := nstest.Pair(t, nstest.Options{MTU: mtu})
			var nics []*vipl.NIC
			for _, ns := range []*nstest.NS{a, b} {
				if err := ns.Do(func() error {
					n, err := vipl.OpenNIC(ns.Name, vipl.WithHugepages(hugepages.Avoid), vipl.WithSilence(calm))
					nics = append(nics, n)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					noError(t, nics[len(nics)-1].Close())
					nics = nics[:len(nics)-1]
				})
			}
			launchers := mvich.Local(2)
			each(t, 2, func(rank int) error {
				w := get(mvich.Init(nics[rank], launchers[rank]))
				c := w.Comm()
				must(swapSizes(c))
				for i := range 500 { // far more than there are credits, both ways
					must(mvich.Send(c, []int{i}, 1-rank, i))
				}
				for i := range 500 {
					get(mvich.Recv(c, make([]int, 1), 1-rank, i))
				}
				everyRooted(c, 5000, 1)
				everyUnrooted(c, 5000)
				must(arenaByReference(w, nics[rank], mtu))
				return w.Finalize()
			})
		})
	}
}

// arenaByReference sends a long message from memory of the arena and one from the program's. Only the first is
// written, and sent by reference, and only if frames are long.
func arenaByReference(w *mvich.World, nic *vipl.NIC, mtu int) error {
	const n = 1 << 20
	arena := get(w.Alloc(n))
	c, other := w.Comm(), 1-w.Rank()
	long := mtu > 4096 && nic.Info().NIC.MultiBuffer
	for _, test := range []struct {
		out   []byte
		byRef bool
	}{{make([]byte, n), false}, {arena, long}} {
		fill(test.out, w.Rank())
		must(c.Barrier())
		in, before, frames := make([]byte, n), w.Stats(), nic.Counters().ByReference
		get(c.Sendrecv(test.out, other, 1, in, other, 1))
		must(check(in, other))
		must(c.Barrier())
		after := w.Stats()
		if written := after.RPUT - before.RPUT; written == 1 != test.byRef || after.RGET-before.RGET+written != 1 {
			return fmt.Errorf("%+v after %+v, written: %v", after, before, test.byRef)
		}
		if byRef := nic.Counters().ByReference - frames; byRef > n/9000 != test.byRef {
			return fmt.Errorf("%d frames were sent by reference: %v", byRef, test.byRef)
		}
	}
	return nil
}
