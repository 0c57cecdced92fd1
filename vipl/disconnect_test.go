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

// Receives that are posted while Disconnect waits for the peer are for the next connection,
// whatever becomes of this one meanwhile.
func TestReceivesPostedBesideDisconnect(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true}, level)
			xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
			n.wire.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
			over := make(chan error, 2)
			for _, v := range []*vipl.VI{va, vb} { // each hears the other's close while it waits
				go func() { over <- v.Disconnect() }()
			}
			synctest.Wait()
			postRecv(t, va, xa, 0, 64)
			for range 2 {
				if err := <-over; err != nil {
					t.Error(err)
				}
			}
			n.wire.SetFaults(xdpnictest.Faults{})
			join(t, n.a.Nic, va, n.b.Nic, vb)
			fillPattern(xb.buf[0], 1)
			postSend(t, vb, xb, 0, 64)
			received(t, va, 0)
			checkPattern(t, xa.buf[0], 1)
		})
	})
}
