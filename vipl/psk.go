package vipl

// Authenticated and encrypted connections: the pre-shared key, and the handshake during connection setup.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
)

// PSK is a pre-shared key. A VI with a key connects only with a VI that has the same key, and their frames are
// encrypted and authenticated. docs/security.md describes the guarantees. A PSK may be used concurrently, for any
// number of VIs.
type PSK struct{ key *secure.PSK }

// NewPSK makes a key of at least 32 bytes, which must be random: a key that a person made up can be found from a
// recorded handshake by trying. The bytes are not kept. ErrInvalidParameter if there are too few.
func NewPSK(key []byte) (*PSK, error) {
	k, err := secure.NewPSK(key)
	if err != nil {
		return nil, opError("NewPSK", nil, ErrInvalidParameter, err)
	}
	return &PSK{k}, nil
}

// mostPSK is the longest key file in bytes.
const mostPSK = 1 << 20

// ReadPSK makes a key of all bytes of a file, 32 bytes to 1 MiB:
//
//	(umask 077; openssl rand -out file 32)
//
// ReadPSK refuses a file that its group or others may access, or whose owner is neither this process's user nor
// root: the key in it is not secret.
func ReadPSK(file string) (*PSK, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, opError("ReadPSK", nil, ErrInvalidParameter, err)
	}
	defer f.Close()
	if err := checkSecret(f); err != nil {
		return nil, opError("ReadPSK", nil, ErrInvalidParameter, err)
	}
	key, err := io.ReadAll(io.LimitReader(f, mostPSK+1))
	if err == nil && len(key) > mostPSK { // perhaps a device without an end
		err = fmt.Errorf("%s: more than %d bytes: use a file of 32 random bytes", file, mostPSK)
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

// checkSecret refuses an open file that other users can access, or whose owner is another user.
func checkSecret(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s: its mode %#o gives other users access, and the key must be secret: chmod 600 %[1]s", f.Name(), mode)
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, neither this process's user %d nor root: use a copy that belongs to this user, with mode 600",
			f.Name(), s.Uid, os.Geteuid())
	}
	return nil
}

// WithPSK sets VIAttributes.PSK for all VIs of the handle that have none of their own.
func WithPSK(psk *PSK) Option { return func(o *options) { o.psk = psk } }

// ErrSecurity means that a connect failed because of the pre-shared keys: one side has none, or they differ, as
// the error text explains. On either side the error wraps both ErrRejected and ErrSecurity.
var ErrSecurity = errors.New("the pre-shared keys do not match")

func securityError(op string, v *VI, reason wire.CMReason) error {
	return opError(op, v, ErrRejected, fmt.Errorf("%w: %v", ErrSecurity, reason))
}

// psk returns the key for connections of v, or nil. v's attributes do not change while it is being connected.
func (v *VI) psk() *PSK {
	if v.attrs.PSK != nil {
		return v.attrs.PSK
	}
	return v.nic.psk
}

// requestSecurely begins the handshake of a request. Without a key it returns nil.
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

// finishSecurely completes the handshake with the acceptor's answer. If that fails, it notifies the acceptor.
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

// checkSecurely checks the requester's part of the handshake. It returns nil if neither side has a key. If the
// check fails, it notifies the requester.
func (v *VI) checkSecurely(op string, in kagent.Incoming, peers bool) (*secure.Offered, error) {
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
		return nil, agentError(op, v, err) // the request was over already
	}
	return nil, securityError(op, v, reason)
}

// acceptSecurely makes the acceptor's part of the handshake, if there is a handshake.
func (v *VI) acceptSecurely(op string, o *secure.Offered, in kagent.Incoming, ours *kagent.Offer) (*secure.Session, error) {
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
