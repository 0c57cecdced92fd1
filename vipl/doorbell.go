package vipl

// One doorbell for the sends of several VIs: a kick of the kernel costs several
// times as much as a frame.

// ringBatch is how many frames wait for Ring at most: so few that the peer can
// begin while the program goes on.
const ringBatch = 4

// PostSendLater is PostSend, but that the doorbell may wait for [Nic.Ring], which
// the program calls soon. Whatever else rings on this NIC rings for it, too: posts,
// polls that find something, waits, the fourth frame that waits, and, where the
// program does nothing of all that, a goroutine of the library within milliseconds.
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

// Ring rings the doorbell for what was posted by PostSendLater, if nobody has. It
// costs next to nothing then. Any goroutine.
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
