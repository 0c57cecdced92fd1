package vipl

// Connections that are authenticated and encrypted, from a key that both sides
// have: the handshake as connections are made, and the sealing of frames. The
// frames that the engine builds and keeps for a retransmission are plain ones; on
// the ring goes a sealed copy of each, with a packet number of its own every time.
// What the rest of the engine sees of a frame that arrived is what was sealed.

import (
	"errors"
	"fmt"
	"io"
	"os"

	"viaxdp/kagent"
	"viaxdp/secure"
	"viaxdp/wire"
	"viaxdp/xdpnic"
)

// PSK is a pre-shared key. A VI that has one connects only with a VI that has the
// same, and their frames are encrypted and authenticated; docs/security.md says what
// that promises. It may be used concurrently, for any number of VIs.
type PSK struct{ key *secure.PSK }

// NewPSK makes a key of at least 32 bytes, which must be random: from a recorded
// handshake, keys that people think up can be found by trying. The bytes are not
// kept. ErrInvalidParameter when there are too few.
func NewPSK(key []byte) (*PSK, error) {
	k, err := secure.NewPSK(key)
	if err != nil {
		return nil, opError("NewPSK", nil, ErrInvalidParameter, err)
	}
	return &PSK{k}, nil
}

// mostPSK is how long a file with a key may be.
const mostPSK = 1 << 20

// ReadPSK makes a key of all bytes of a file, 32 to 1 MiB of them:
//
//	openssl rand -out file 32
func ReadPSK(file string) (*PSK, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, opError("ReadPSK", nil, ErrInvalidParameter, err)
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, mostPSK+1))
	if err == nil && len(key) > mostPSK { // a device, perhaps, that has no end
		err = fmt.Errorf("%s: more than %d bytes: want a file of 32 random ones", file, mostPSK)
	}
	if err != nil {
		return nil, opError("ReadPSK", nil, ErrInvalidParameter, err)
	}
	k, err := secure.NewPSK(key)
	if err != nil {
		return nil, opError("ReadPSK", nil, ErrInvalidParameter, fmt.Errorf("%s: %w", file, err))
	}
	return &PSK{k}, nil
}

// WithPSK is ViAttributes.PSK for all VIs of the handle that have none of their
// own.
func WithPSK(psk *PSK) Option { return func(o *options) { o.psk = psk } }

// ErrSecurity says that a connect failed because the pre-shared keys do not go
// together: one side has none, or they differ; the text says which. The error, on
// either side, wraps both ErrRejected and ErrSecurity.
var ErrSecurity = errors.New("the pre-shared keys do not go together")

func securityError(op string, v *VI, reason wire.CMReason) error {
	return opError(op, v, ErrRejected, fmt.Errorf("%w: %v", ErrSecurity, reason))
}

// psk is the key for connections of v, or nil. Its attributes do not change while
// it is being connected.
func (v *VI) psk() *PSK {
	if v.attrs.PSK != nil {
		return v.attrs.PSK
	}
	return v.nic.psk
}

// requestSecurely begins the handshake of a request, if v has a key; else it
// returns nil.
func (v *VI) requestSecurely(op string, ours *kagent.Offer, peers bool, local, remote NetAddress) (*secure.Requester, error) {
	psk := v.psk()
	if psk == nil {
		return nil, nil
	}
	bound, err := ours.Bound(true, peers, local.agent(), remote.agent())
	if err != nil {
		return nil, opError(op, v, ErrInvalidParameter, err)
	}
	r, share, err := psk.key.Request(bound)
	if err != nil {
		return nil, opError(op, v, ErrNotSupported, err)
	}
	ours.Handshake = kagent.Opaque(share)
	return r, nil
}

// finishSecurely ends it by the answer. When that fails the acceptor is told.
func (v *VI) finishSecurely(op string, r *secure.Requester, a *kagent.Answer) (proof []byte, s *secure.Session, err error) {
	reason := wire.CMReasonKey
	switch {
	case r == nil && a.Handshake == "":
		return nil, nil, nil
	case r == nil:
		reason = wire.CMReasonPlain
	case a.Handshake == "":
		reason = wire.CMReasonNoKey
	default:
		bound, err := a.Bound(false, false, a.Remote, a.Local)
		if err == nil {
			proof, s, err = r.Finish([]byte(a.Handshake), bound, v.nic.rekey)
		}
		if err == nil {
			return proof, s, nil
		}
	}
	a.Decline(reason)
	return nil, nil, securityError(op, v, reason)
}

// checkSecurely looks at the requester's part of the handshake; nil without a key
// on both sides. When that fails the requester is told.
func (v *VI) checkSecurely(op string, in *kagent.Incoming, peers bool) (*secure.Offered, error) {
	psk, theirs := v.psk(), in.Offer()
	reason := wire.CMReasonKey
	switch {
	case psk == nil && theirs.Handshake == "":
		return nil, nil
	case psk == nil:
		reason = wire.CMReasonPlain
	case theirs.Handshake == "":
		reason = wire.CMReasonNoKey
	default:
		bound, err := theirs.Bound(true, peers, in.Remote(), in.Local())
		if err == nil {
			var o *secure.Offered
			if o, err = psk.key.Check([]byte(theirs.Handshake), bound); err == nil {
				return o, nil
			}
		}
	}
	if err := in.Reject(reason); err != nil {
		return nil, agentError(op, v, err) // it was over anyway
	}
	return nil, securityError(op, v, reason)
}

// acceptSecurely makes the acceptor's part of the handshake, if there is one.
func (v *VI) acceptSecurely(op string, o *secure.Offered, in *kagent.Incoming, ours *kagent.Offer) (*secure.Session, error) {
	if o == nil {
		return nil, nil
	}
	bound, err := ours.Bound(false, false, in.Local(), in.Remote())
	if err != nil {
		return nil, opError(op, v, ErrInvalidParameter, err)
	}
	a, err := o.Accept(bound, v.nic.rekey)
	if err != nil {
		in.Reject(wire.CMReasonKey)
		return nil, opError(op, v, ErrRejected, fmt.Errorf("%w: %w", ErrSecurity, err))
	}
	ours.Handshake, ours.Confirm = kagent.Opaque(a.Share), kagent.Opaque(a.Confirm)
	return a.Session, nil
}

// sendSealed queues the sealed form of the frame of that size at addr, which stays
// the engine's with retain, and else is given back. False: no chunk for it, or no
// ring entry.
func (p *port) sendSealed(c *conn, addr uint64, size int, retain bool) bool {
	if !p.roomToSeal(1) {
		return false
	}
	to, chunk, _ := p.nic.Alloc()
	plain := p.mem[addr+uint64(c.template.Len()) : addr+uint64(size)]
	p.seal(c, c.template.Put(chunk, len(plain)+wire.SealOverhead), plain)
	if !p.queue(c, to, size+wire.SealOverhead, false) {
		p.nic.Release(to)
		return false
	}
	if !retain {
		p.nic.Release(addr)
	}
	return true
}

// sendLongSealed is sendSealed for a frame of several segments. It is sealed in one
// piece, since crypto/cipher takes no others, and then goes into as many chunks as
// it needs.
func (p *port) sendLongSealed(c *conn, f *longFrame, retain bool) bool {
	l := &p.chains
	l.whole = append(l.whole[:0], make([]byte, sealAhead)...)
	for _, b := range l.parts {
		l.whole = append(l.whole, b...)
	}
	plain := l.whole[sealAhead:]
	if !p.roomToSeal(c.chunksFor(len(plain))) {
		return false
	}
	l.whole = append(l.whole, make([]byte, wire.TagLen)...)
	p.seal(c, l.whole, l.whole[sealAhead:][:len(plain)])

	l.sealed = l.sealed[:0]
	lower := c.template.Len()
	for rest := l.whole; len(rest) > 0; lower = 0 {
		addr, chunk, _ := p.nic.Alloc()
		if lower > 0 {
			c.template.PutHead(chunk, len(l.whole))
		}
		n := copy(chunk[lower:], rest)
		rest = rest[n:]
		l.sealed = append(l.sealed, xdpnic.Desc{Addr: addr, Len: uint32(lower + n)})
	}
	if !p.queueSegs(l.sealed, false) {
		for _, s := range l.sealed {
			p.nic.Release(s.Addr)
		}
		return false
	}
	if !retain {
		p.giveUp(f)
	}
	return true
}

// sealAhead is how far behind the beginning of its sealed form a frame must lie for
// the bytes that are encrypted to be where they go.
const sealAhead = wire.SealOverhead - wire.TagLen

// seal writes the sealed form of plain, header and payload, to b.
func (p *port) seal(c *conn, b, plain []byte) {
	s := c.secure
	before := s.Epoch()
	epoch, number := s.Next()
	if epoch != before {
		p.stats.Rekeyed++
	}
	clear, inner := wire.PutSealed(b, plain, epoch, number)
	s.Seal(clear, inner, clear)
}

// chunksFor is how many chunks the sealed form of a frame of n bytes, header and
// payload, takes.
func (c *conn) chunksFor(n int) int {
	tx, _ := c.vi.port.nic.FrameCap()
	return (c.template.Len() + n + wire.SealOverhead + tx - 1) / tx
}

// roomToSeal says whether there are so many chunks for what is sealed. They may be
// of those that data leaves (port.spare), since they come back when the frame has
// left.
func (p *port) roomToSeal(chunks int) bool {
	if p.nic.TxFree() < chunks {
		p.nic.Reap()
	}
	if p.nic.TxFree() < chunks {
		p.flush()
	}
	return p.nic.TxFree() >= chunks
}

// unseal opens a frame of a connection with a key, in its chunk, or, if it has
// several, in a copy.
func (p *port) unseal(c *conn, pkt *wire.Packet) bool {
	if c.secure == nil || pkt.Kind != wire.KindSealed {
		p.stats.Unsealed++
		return false
	}
	p.chains.joinSealed(pkt)
	clear, sealed := pkt.Sealed()
	switch c.secure.Open(sealed, clear, pkt.Epoch(), pkt.Number()) {
	case nil:
	case secure.ErrReplay:
		p.stats.Replayed++
		return false
	default:
		p.stats.Forged++
		return false
	}
	if pkt.Opened() != nil {
		p.stats.Malformed++
		return false
	}
	return true
}

func (l *chains) joinSealed(pkt *wire.Packet) {
	if len(pkt.Rest) > 0 {
		l.joined = pkt.Join(l.joined)
	}
}

// keepOpen makes a frame that was opened one that decodeAgain reads.
func (p *port) keepOpen(c *conn, frame []xdpnic.Frame) {
	if c.secure != nil && len(frame) > 1 {
		p.pkt.Spread()
	}
}

// decodeAgain reads a frame that was good when it came, and is open if it was
// sealed.
func (p *port) decodeAgain(c *conn, frame []xdpnic.Frame) error {
	if err := p.chains.decode(&p.pkt, frame); err != nil || c.secure == nil {
		return err
	}
	p.chains.joinSealed(&p.pkt)
	return p.pkt.Opened()
}
