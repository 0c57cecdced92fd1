package vipl

// One doorbell for the sends of several VIs: a kick of the kernel costs several
// times as much as a frame.

// ringBatch is how many frames wait for Ring at most: so few that the peer can
// begin while the program goes on.
const ringBatch = 4

// PostSendLater is PostSend without the doorbell, which may wait until the program
// calls [Nic.Ring], as it soon should. Whatever else rings on this NIC rings for
// this send, too: posts, polls that find something, waits, and the fourth frame that
// waits. Where the program does none of these, a goroutine of the library rings
// within milliseconds.
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

// Ring rings the doorbell for what was posted by PostSendLater on any VI of the
// NIC. Where it was rung already, Ring costs next to nothing. It may be called
// concurrently.
func (n *Nic) Ring() {
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

// mayRingLater notes that frames wait for Ring, unless there are many. Under the
// lock.
func (p *port) mayRingLater() bool {
	if n := p.nic.Pending(); n == 0 || n >= ringBatch {
		return false
	}
	if p.unrung.Load() == 0 {
		p.unrung.Store(1)
		p.lookSoon()
	}
	return true
}
