package mvich_test

import (
	"testing"

	"viaxdp/hugepages"
	"viaxdp/internal/nstest"
	"viaxdp/mvich"
	"viaxdp/vipl"
)

// Two ranks on both ends of a veth pair: every size, credits that run out, and
// collective operations.
func TestVeth(t *testing.T) {
	for name, mtu := range map[string]int{"1500": 1500, "9000": 9000} {
		t.Run(name, func(t *testing.T) {
			a, b := nstest.Pair(t, nstest.Options{MTU: mtu})
			var nics []*vipl.Nic
			for _, ns := range []*nstest.NS{a, b} {
				if err := ns.Do(func() error {
					n, err := vipl.OpenNic(ns.Name, vipl.WithHugepages(hugepages.Avoid))
					nics = append(nics, n)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := nics[len(nics)-1].Close(); err != nil {
						t.Error(err)
					}
					nics = nics[:len(nics)-1]
				})
			}
			launchers := mvich.Local(2)
			each(t, 2, func(rank int) error {
				w, err := mvich.Init(nics[rank], launchers[rank])
				if err != nil {
					return err
				}
				c := w.Comm()
				if err := swapSizes(c); err != nil {
					return err
				}
				for i := range 500 { // far more than there are credits, both ways
					if err := mvich.Send(c, []int{i}, 1-rank, i); err != nil {
						return err
					}
				}
				for i := range 500 {
					if _, err := mvich.Recv(c, make([]int, 1), 1-rank, i); err != nil {
						return err
					}
				}
				if err := everyRooted(c, 5000, 1); err != nil {
					return err
				}
				if err := everyUnrooted(c, 5000); err != nil {
					return err
				}
				return w.Finalize()
			})
		})
	}
}
