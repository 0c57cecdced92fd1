package secure

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
)

// TagLen is the number of bytes that Seal adds.
const TagLen = 16

// Limits sets when the sender of a session changes its key: after this number of
// frames or of bytes, whichever comes first. 0 means the default: 2^22 frames, 2^36
// bytes. That is within the limit of AES-GCM in TLS (RFC 8446, 5.5: 2^24.5 records of
// 16 KB) for any frame length. A receiver follows one change at a time: if all packets
// of one key are lost, it can open none that follow. So a key must last for more
// packets than a live connection can lose in a row.
type Limits struct {
	Frames, Bytes uint64
}

const (
	defaultFrames = 1 << 22
	defaultBytes  = 1 << 36
)

// Errors of Open. Open returns these values unwrapped, so that a refusal does not
// allocate.
var (
	ErrReplay = errors.New("secure: this packet came before, or is too old to tell")
	ErrForged = errors.New("secure: the packet was not sealed by the peer, or was changed")
)

// Session seals and opens the frames of one connection, in both directions.
type Session struct {
	out struct {
		keys          epochKeys
		number        uint64 // of the next packet
		frames, bytes uint64 // sealed by this key
		limits        Limits
	}
	in struct {
		last, current, next epochKeys
		window              window
	}
	nonce [nonceLen]byte // here, so that nothing escapes
}

const nonceLen = 12

// epochKeys are the keys of one epoch of one direction.
type epochKeys struct {
	epoch  uint16
	secret secret // the next epoch's secret is derived from it
	iv     [nonceLen]byte
	aead   cipher.AEAD // nil: no such epoch
}

func newSession(out, in secret, l Limits) *Session {
	s := &Session{}
	s.out.limits = Limits{cmp.Or(l.Frames, defaultFrames), cmp.Or(l.Bytes, defaultBytes)}
	s.out.keys, s.in.current = newEpoch(0, out), newEpoch(0, in)
	s.in.next = s.in.current.following()
	return s
}

func newEpoch(epoch uint16, from secret) epochKeys {
	key, iv := expand(from, "key"), expand(from, "iv")
	return epochKeys{epoch, from, [nonceLen]byte(iv[:]), must(cipher.NewGCM(must(aes.NewCipher(key[:]))))}
}

func (k *epochKeys) following() epochKeys { return newEpoch(k.epoch+1, expand(k.secret, "next")) }

// nonceOf returns the key's vector combined with the packet's number.
func (s *Session) nonceOf(k *epochKeys, number uint64) []byte {
	s.nonce = k.iv
	low := s.nonce[nonceLen-8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^number)
	return s.nonce[:]
}

// Next returns the epoch and number of the next packet to seal. If a change of the key
// is due, Next makes it, which takes some microseconds and allocates.
func (s *Session) Next() (epoch uint16, number uint64) {
	o := &s.out
	if o.frames >= o.limits.Frames || o.bytes >= o.limits.Bytes {
		o.keys, o.frames, o.bytes = o.keys.following(), 0, 0
	}
	return o.keys.epoch, o.number
}

// Seal appends the encryption of plain and TagLen more bytes to b, as the packet with
// the epoch and number of the last Next; the number is then used up. clear is
// authenticated with the packet and not changed. The capacity of b after its length
// either is plain (b is plain[:0]) or does not overlap it. If it suffices, Seal does
// not allocate.
func (s *Session) Seal(b, plain, clear []byte) []byte {
	o := &s.out
	nonce := s.nonceOf(&o.keys, o.number)
	o.number++
	o.frames++
	o.bytes += uint64(len(plain))
	return o.keys.aead.Seal(b, nonce, plain, clear)
}

// Epoch returns the number of times that the sender has changed its key.
func (s *Session) Epoch() uint16 { return s.out.keys.epoch }

// Open opens a packet in place: the plain bytes are then in sealed, in all but the last
// TagLen bytes. It fails with ErrReplay if the packet came before or is more than
// Window older than the newest. It fails with ErrForged if the peer did not seal these
// bytes with this clear, epoch and number; the content of sealed is then lost. An error
// leaves the session unchanged. Only a packet that makes the receiver follow to the
// next key allocates.
func (s *Session) Open(sealed, clear []byte, epoch uint16, number uint64) error {
	in := &s.in
	if !in.window.fresh(number) {
		return ErrReplay
	}
	var k *epochKeys
	for _, x := range [...]*epochKeys{&in.current, &in.last, &in.next} {
		if x.epoch == epoch && x.aead != nil {
			k = x
			break
		}
	}
	if k == nil {
		return ErrForged
	}
	if _, err := k.aead.Open(sealed[:0], s.nonceOf(k, number), sealed, clear); err != nil {
		return ErrForged
	}
	in.window.take(number)
	if k == &in.next {
		in.last, in.current, in.next = in.current, in.next, in.next.following()
	}
	return nil
}

const (
	windowWords = 32
	// Window is how far a packet number may lie behind the newest one.
	Window = (windowWords - 1) * 64
)

// window remembers which packets came: a bit for each of the newest, in a ring of
// words (RFC 6479). The word that the newest is in is only partly used.
type window struct {
	top  uint64 // one more than the highest number that came
	bits [windowWords]uint64
}

// fresh reports whether a packet with number n may be accepted.
func (w *window) fresh(n uint64) bool {
	if n >= w.top {
		return true
	}
	return n/64+windowWords > (w.top-1)/64 && w.bits[n/64%windowWords]&(1<<(n%64)) == 0
}

// take records that packet n came.
func (w *window) take(n uint64) {
	if n >= w.top {
		if w.top > 0 {
			at, to := (w.top-1)/64, n/64
			for range min(to-at, windowWords) {
				at++
				w.bits[at%windowWords] = 0
			}
		}
		w.top = n + 1
	}
	w.bits[n/64%windowWords] |= 1 << (n % 64)
}
