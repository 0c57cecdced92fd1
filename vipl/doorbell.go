package vipl

// One doorbell for the sends of several VIs. A kick of the kernel costs several times as much as a frame.

// ringBatch is the most frames that wait for Ring. It is small so that the peer can begin while the program goes
// on.
const ringBatch = 4

// PostSendLater is PostSend without the doorbell. The program should soon call [NIC.Ring]. Any other doorbell of
// this NIC also covers this send: posts, polls that find something, waits, and the fourth waiting frame ring it. If
// the program does none of these, a goroutine of the library rings within milliseconds.
func (v *VI) PostSendLater(d *Descriptor, h MemHandle) error {
	p := v.port
	p.mu.Lock()
	err := v.join("PostSendLater", &v.send, d, h)
	if err == nil {
		v.sendPosted(true)
	}
	p.mu.Unlock()
	return err
}

// Ring rings the doorbell for what PostSendLater has posted on any VI of the NIC. If it has been rung already, Ring
// costs next to nothing. It may be called concurrently.
func (n *NIC) Ring() {
	p := n.port
	if p.unrung.Load() == 0 {
		return
	}
	p.mu.Lock()
	if p.unrung.Load() != 0 {
		p.finish(p.now(), false)
	}
	p.mu.Unlock()
}

// mayRingLater reports whether the frames on the ring may wait for Ring, and records that they do. Under the lock.
func (p *port) mayRingLater() bool {
	if n := p.nic.Pending(); n == 0 || n >= ringBatch {
		return false
	}
	if p.unrung.Load() == 0 {
		p.unrung.Store(1)
		p.wakeBackground()
	}
	return true
}
