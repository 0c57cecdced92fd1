package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

// A peer that goes on answering, and does not take the close, does not hold Disconnect.
func TestDisconnectFromOneWhoTakesNoClose(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Minute}, level)
			xb := newBox(t, n.b.Nic, 1, 64)
			n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindClose }))
			over, spoken := make(chan struct{}), make(chan int)
			go func() { // RDMA writes of nothing, which take no receive
				for n := 0; ; n++ {
					select {
					case <-over:
						spoken <- n
						return
					case <-time.After(50 * time.Millisecond):
					}
					xb.desc[0].SetRDMAWrite(vipl.AddressSegment{})
					if err := vb.PostSend(xb.desc[0], xb.region.Handle()); err != nil {
						t.Error(err)
					}
					if _, err := vb.SendWait(patience); err != nil { // the other side has gone
						spoken <- n
						return
					}
				}
			}()
			start := time.Now()
			if err := va.Disconnect(); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			close(over)
			if n := <-spoken; took < 2*time.Second || took > 6*time.Second || n < 50 {
				t.Errorf("it took %v, in which the peer spoke %d times", took, n)
			}
			stateIs(t, va, vipl.Idle)
			n.a.queue.SetFaults(xdpnictest.Faults{})
			if err := vb.Disconnect(); err != nil {
				t.Error(err)
			}
		})
	})
}
