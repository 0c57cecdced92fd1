package vipl_test

import (
	"errors"
	"testing"
	"time"

	"viaxdp/vipl"
)

// Wake ends one Wait, which is under way, asleep or polling, or comes next, and no
// more than that; entries come first, and Done does not hear of it.
func TestWakeCQ(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	cq, err := n.b.CreateCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	for _, asleep := range []time.Duration{0, 20 * time.Millisecond} {
		woken := make(chan error, 2)
		for range 2 {
			go func() { _, _, err := cq.Wait(patience); woken <- err }()
		}
		for range 2 {
			time.Sleep(asleep)
			cq.Wake()
			if err := <-woken; err != vipl.ErrNotDone {
				t.Fatalf("Wait: %v", err)
			}
		}
	}

	cq.Wake()
	cq.Wake()
	if _, _, err := cq.Done(); err != vipl.ErrNotDone {
		t.Errorf("Done: %v", err)
	}
	vb, err := n.b.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, nil, cq)
	if err != nil {
		t.Fatal(err)
	}
	vb.SetValue("one")
	x := newBox(t, n.b.Nic, 1, 64)
	postRecv(t, vb, x, 0, 64)
	wantError(t, "disconnect", vb.Disconnect(), nil)
	if vi, recv, err := cq.Wait(patience); vi != vb || !recv || err != nil || vi.Value() != "one" {
		t.Fatalf("Wait with an entry: %v, %v, %v", vi, recv, err)
	}
	if _, _, err := cq.Wait(0); err != vipl.ErrNotDone {
		t.Errorf("Wait behind two wakes: %v", err)
	}
	if _, _, err := cq.Wait(0); !errors.Is(err, vipl.ErrTimeout) {
		t.Errorf("Wait behind the one that has taken them: %v", err)
	}
}
