package vipl

// WithoutBackground takes the background goroutine from n's engine, which nobody uses
// yet, until back is called: everything then happens in the goroutines that call.
func (n *Nic) WithoutBackground() (back func()) {
	p := n.port
	close(p.closed)
	p.nic.Wake()
	p.stopped.Wait()
	p.closed = make(chan struct{})
	return func() {
		p.stopped.Add(1)
		go p.background()
	}
}
