package vipl_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"viaxdp/vipl"
)

// Who has seen in a descriptor's status that it is complete gets it by Done, and its entry by
// CQDone, however long the engine takes from the one to the other.
func TestDoneAfterStatus(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	cq, err := n.b.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	for name, bound := range map[string]*vipl.CQ{"alone": nil, "with a queue": cq} {
		vi, err := n.b.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, nil, bound)
		if err != nil {
			t.Fatal(err)
		}
		_, recv := vi.Watch()
		var pending *uint64
		if bound != nil {
			_, pending = bound.Watch()
		}
		one := func() (*vipl.Descriptor, error) {
			if bound != nil {
				if _, _, err := cq.Done(); err != nil {
					return nil, err
				}
			}
			return vi.RecvDone()
		}
		list := func() (*vipl.Descriptor, error) {
			if bound != nil {
				if _, err := cq.Dones(make([]vipl.Completion, 2)); err != nil {
					return nil, err
				}
			}
			var d [2]*vipl.Descriptor
			_, err := vi.RecvDones(d[:])
			return d[0], err
		}
		x := newBox(t, n.b.Nic, 2, 64)
		for i, take := range []func() (*vipl.Descriptor, error){one, list} {
			postRecv(t, vi, x, i, 64)
			got, seen := make(chan error, 1), make(chan struct{})
			words := func(ahead, entry uint64) {
				t.Helper()
				settling, completed := atomic.LoadUint64(recv.Settling), atomic.LoadUint64(recv.Completed)
				if settling != completed+ahead {
					t.Errorf("%s, %d: %d complete, %d as it will be, want %d more", name, i, completed, settling, ahead)
				}
				if bound != nil && atomic.LoadUint64(pending) != entry {
					t.Errorf("%s, %d: the queue's word is not %d", name, i, entry)
				}
			}
			vi.Settle(func() {
				words(1, 1)
				go func() {
					for x.desc[i].Status()&vipl.StatusDone == 0 {
					}
					close(seen)
					d, err := take()
					if err == nil && d != x.desc[i] {
						t.Errorf("%s, %d: another descriptor", name, i)
					}
					got <- err
				}()
				<-seen
				for range 100 {
					runtime.Gosched() // it looks now
				}
			})
			words(0, 0)
			if err := <-got; err != nil {
				t.Errorf("%s, %d: %v", name, i, err)
			}
		}
	}
}
