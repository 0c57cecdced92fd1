package secure

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

const (
	// MinKey is the length of the shortest pre-shared key, in bytes.
	MinKey = 32
	// ShareLen is the length of the share of a request or an answer, in bytes.
	ShareLen = publicLen + ProofLen
	// ProofLen is the length of the confirmation, in bytes.
	ProofLen = 16

	publicLen = 32
	protocol  = "via-xdp 1 NNpsk0 X25519 AES-256-GCM SHA-256"
)

// The ways in which a handshake fails.
var (
	ErrKeyLength = fmt.Errorf("secure: a pre-shared key has at least %d bytes: take random ones", MinKey)
	// ErrProof: the other side does not know the pre-shared key, or a message was
	// changed on the path.
	ErrProof = errors.New("secure: the pre-shared keys differ")
)

type secret [sha256.Size]byte

// PSK is a pre-shared key.
type PSK struct {
	root    secret
	request secret // makes the proof of a request
}

// NewPSK makes a PSK from a key of at least MinKey bytes. The key must be random: keys can be tried offline
// against a recorded handshake. NewPSK does not keep the bytes. It fails with ErrKeyLength if there are too
// few.
func NewPSK(key []byte) (*PSK, error) {
	if len(key) < MinKey {
		return nil, ErrKeyLength
	}
	root := extract(key, []byte(protocol))
	return &PSK{root: root, request: expand(root, "request")}, nil
}

// Requester is the requester's side between its Request and the answer.
type Requester struct {
	psk     *PSK
	private *ecdh.PrivateKey
	said    secret
}

// Request begins a handshake. bound is the content of the request and its destination;
// the acceptor must pass the same bytes. The share, of ShareLen bytes, goes with the
// request.
func (k *PSK) Request(bound []byte) (r *Requester, share []byte, err error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("secure: %w", err)
	}
	r, share = k.requestBy(private, bound)
	return r, share, nil
}

func (k *PSK) requestBy(private *ecdh.PrivateKey, bound []byte) (*Requester, []byte) {
	public := private.PublicKey().Bytes()
	said := sum([]byte(protocol), bound, public)
	share := append(public, proof(k.request, said)...)
	return &Requester{k, private, sum(said[:], share)}, share
}

// Offered is a request whose proof is valid.
type Offered struct {
	psk    *PSK
	public *ecdh.PublicKey
	said   secret
}

// Check verifies the share of a request; bound is the content of the request and its
// destination. It fails with ErrProof if the sender does not know this key or bound
// other bytes.
func (k *PSK) Check(share, bound []byte) (*Offered, error) {
	if len(share) != ShareLen {
		return nil, ErrProof
	}
	said := sum([]byte(protocol), bound, share[:publicLen])
	if !hmac.Equal(share[publicLen:], proof(k.request, said)) {
		return nil, ErrProof
	}
	public, err := ecdh.X25519().NewPublicKey(share[:publicLen])
	if err != nil {
		return nil, ErrProof
	}
	return &Offered{k, public, sum(said[:], share)}, nil
}

// Acceptance is the acceptor's side after its answer.
type Acceptance struct {
	Share   []byte   // goes with the answer
	Confirm []byte   // what the requester's confirmation must carry
	Session *Session // the connection's session; a frame that it opens proves as much as Confirm
}

// Accept answers the request. bound is the content of the answer; l sets when the
// session changes its key.
func (o *Offered) Accept(bound []byte, l Limits) (*Acceptance, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("secure: %w", err)
	}
	return o.acceptBy(private, bound, l)
}

func (o *Offered) acceptBy(private *ecdh.PrivateKey, bound []byte, l Limits) (*Acceptance, error) {
	public := private.PublicKey().Bytes()
	keys, err := o.psk.agree(private, o.public)
	if err != nil {
		return nil, err
	}
	said := sum(o.said[:], bound, public)
	share := append(public, proof(keys.accept, said)...)
	said = sum(said[:], share)
	return &Acceptance{share, proof(keys.confirm, said), keys.session(said, false, l)}, nil
}

// Finish takes the answer's share; bound is the content of the answer. It returns the
// bytes that the confirmation must carry, and the session, which may be used at once.
// It fails with ErrProof if the answer's sender does not know the key, or received or
// bound other bytes.
func (r *Requester) Finish(share, bound []byte, l Limits) (confirm []byte, s *Session, err error) {
	if len(share) != ShareLen {
		return nil, nil, ErrProof
	}
	public, err := ecdh.X25519().NewPublicKey(share[:publicLen])
	if err != nil {
		return nil, nil, ErrProof
	}
	keys, err := r.psk.agree(r.private, public)
	if err != nil {
		return nil, nil, err
	}
	said := sum(r.said[:], bound, share[:publicLen])
	if !hmac.Equal(share[publicLen:], proof(keys.accept, said)) {
		return nil, nil, ErrProof
	}
	said = sum(said[:], share)
	return proof(keys.confirm, said), keys.session(said, true, l), nil
}

// agreed holds the secrets that only the two sides know.
type agreed struct{ master, accept, confirm secret }

// agree mixes the pre-shared key and the result of X25519.
func (k *PSK) agree(private *ecdh.PrivateKey, public *ecdh.PublicKey) (a agreed, err error) {
	shared, err := private.ECDH(public)
	if err != nil {
		return a, ErrProof // a point of low order: no share of ours
	}
	master := extract(shared, k.root[:])
	return agreed{master, expand(master, "accept"), expand(master, "confirm")}, nil
}

// session makes the session of a handshake; said is the hash of its transcript.
func (a *agreed) session(said secret, requester bool, l Limits) *Session {
	out, in := expand(a.master, "requester"+string(said[:])), expand(a.master, "acceptor"+string(said[:]))
	if !requester {
		out, in = in, out
	}
	return newSession(out, in, l)
}

// sum returns the hash of parts, each preceded by its length so that different lists of parts have different sums.
func sum(parts ...[]byte) secret {
	h := sha256.New()
	for _, b := range parts {
		n := len(b)
		h.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		h.Write(b)
	}
	return secret(h.Sum(nil))
}

func proof(key, said secret) []byte {
	m := hmac.New(sha256.New, key[:])
	m.Write(said[:])
	return m.Sum(nil)[:ProofLen]
}

func extract(from, salt []byte) secret { return secret(must(hkdf.Extract(sha256.New, from, salt))) }

func expand(from secret, label string) secret {
	return secret(must(hkdf.Expand(sha256.New, from[:], label, len(from))))
}

// must is for errors that the lengths of the keys rule out.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("secure: %v", err))
	}
	return v
}
