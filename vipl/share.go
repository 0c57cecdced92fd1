package vipl

// How the connections of a port share its chunks. The peer of each connection may have up to shares.window units of
// frames that this side has not acknowledged. Each connection may keep up to shares.tx TX chunks for frames that its
// peer has not acknowledged.

import "viaxdp/internal/base/wire"

// shares is the division of the chunks. Invariant: window and tx are what share computes for active, and spare is
// what leaveSpare computes for the connections that have a key.
type shares struct {
	active   int // connections that are open
	window   int // units that the peer of each connection may have outstanding
	txChunks int // number of TX chunks
	tx       int // TX chunks of each connection when they are short
	spare    int // TX chunks that data leaves free; more if a connection has a key
}

func (p *port) initShares() {
	p.shares.txChunks = p.nic.TxFree()
	p.leaveSpare()
	p.share()
}

// countConn records that n connections have opened (-1: one has ended), and divides the chunks again.
func (p *port) countConn(n int) {
	p.shares.active += n
	p.share()
}

// share divides the chunks for received frames among the connections. Each frame carries the window, which
// grows when other connections end. share also divides the chunks for sending, see leaves.
func (p *port) share() {
	p.shares.window = p.windowOf(p.shares.active)
	p.shares.tx = max(leastWindow, p.shares.txChunks*3/4/max(p.shares.active, 1))
}

// windowOf returns the window of each of conns connections. A quarter of the chunks stays in reserve, and the
// window is at least leastWindow. A unit of the window takes one chunk, or several small ones.
func (p *port) windowOf(conns int) int {
	chunks := 1
	if _, rx := p.nic.FrameCap(); p.nic.MaxSegs() > 1 {
		chunks = (wire.WindowUnit + rx - 1) / rx
	}
	return max(leastWindow, min(maxWindow, p.nic.RxChunks()*3/4/chunks/max(conns, 1)))
}

// tellWindow notifies the peer of c that its window has shrunk. Otherwise a peer that has been idle could
// return with as many frames as its old window allowed. A peer may go on with a window of up to 8/7 of the present one:
// with the reserve of a quarter, and the chunks that refill has not returned yet, that is no more than there
// are.
func (p *port) tellWindow(c *conn, now int64) {
	if c.open && c.receiver != nil && c.vi.state == Connected && 8*p.shares.window < 7*int(c.header.Window) {
		p.oweAckUntil(c, now+defaultAckDelay)
		p.wakeBackground()
	}
}

// leaveSpare computes how many TX chunks data leaves unused. They serve acknowledgements and other control frames
// and, where connections have a key, the sealed copy of a frame.
func (p *port) leaveSpare() {
	p.shares.spare = controlSpare
	for _, v := range p.vis.connected {
		if v != nil && v.conn != nil && v.conn.secure != nil {
			p.shares.spare = max(p.shares.spare, controlSpare+v.conn.chunksFor(wire.HeaderLen+v.conn.payload))
		}
	}
	p.shares.spare = min(p.shares.spare, p.shares.txChunks/2) // data gets at least half, however few there are
}

// leaves returns how many chunks must stay free after c has taken one. Each connection has its share. It may exceed
// the share while half of all chunks are free, so that a peer that acknowledges nothing does not starve other
// connections.
func (p *port) leaves(c *conn) int {
	if c.chunks < p.shares.tx {
		return p.shares.spare
	}
	return max(p.shares.spare, p.shares.txChunks/2)
}
