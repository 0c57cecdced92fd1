package vipl

// OnSteadyClock is p with the clock of OpenNic.
func OnSteadyClock(p Provider) Provider {
	p.steady = true
	return p
}

// NextFrame is the number of the frame that goes next.
func (v *VI) NextFrame() uint32 {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.conn.nextSeq()
}

// PostSendSeen is PostSend during which rings calls f at the port's doorbell, with
// the number of the frame that goes next; nobody else rings meanwhile.
func (v *VI) PostSendSeen(d *Descriptor, h MemHandle, rings *func(), f func(nextFrame uint32)) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	*rings = func() { f(v.conn.nextSeq()) }
	defer func() { *rings = nil }()
	if err := v.join("PostSend", &v.send, d, h); err != nil {
		return err
	}
	v.sendPosted(false)
	return nil
}
