package secure

import (
	"bytes"
	"crypto/ecdh"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

func newPSK(t testing.TB, b byte) *PSK {
	t.Helper()
	key := make([]byte, MinKey)
	for i := range key {
		key[i] = b + byte(i)
	}
	k, err := NewPSK(key)
	nstest.Must(t, err)
	return k
}

// shake makes a handshake as two sides do that see the same.
func shake(t rapid.TB, k *PSK, l Limits) (requester, acceptor *Session) {
	t.Helper()
	r, ask, err := k.Request([]byte("asks"))
	nstest.Must(t, err)
	o, err := k.Check(ask, []byte("asks"))
	nstest.Must(t, err)
	a, err := o.Accept([]byte("answers"), l)
	nstest.Must(t, err)
	confirm, s, err := r.Finish(a.Share, []byte("answers"), l)
	nstest.Must(t, err)
	if len(ask) != ShareLen || len(a.Share) != ShareLen || len(confirm) != ProofLen || !bytes.Equal(confirm, a.Confirm) {
		t.Fatalf("lengths %d, %d, %d; confirmation %x, want %x", len(ask), len(a.Share), len(confirm), confirm, a.Confirm)
	}
	return s, a.Session
}

// Another implementation, testdata/vectors.py, comes to the same bytes.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/vectors.txt")
	nstest.Must(t, err)
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = value
	}
	check := func(name string, got []byte) {
		t.Helper()
		if want[name] == "" || hex.EncodeToString(got) != want[name] {
			t.Errorf("%s:\n got %x\nwant %s", name, got, want[name])
		}
		delete(want, name)
	}
	private := func(b byte) *ecdh.PrivateKey {
		k, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{b}, 32))
		nstest.Must(t, err)
		return k
	}
	k := newPSK(t, 0)
	r, ask := k.requestBy(private(1), []byte("asks"))
	check("request", ask)
	o, err := k.Check(ask, []byte("asks"))
	nstest.Must(t, err)
	a, err := o.acceptBy(private(2), []byte("answers"), Limits{})
	nstest.Must(t, err)
	check("answer", a.Share)
	confirm, s, err := r.Finish(a.Share, []byte("answers"), Limits{Frames: 2})
	nstest.Must(t, err)
	check("confirm", confirm)
	clear := []byte("clear")
	for i, plain := range []string{"hello", "", "next key"} {
		epoch, number := s.Next()
		nstest.ErrorIf(t, int(number) != i || int(epoch) != i/2, "packet %d is number %d of epoch %d", i, number, epoch)
		check([]string{"requester-0", "requester-1", "requester-2"}[i], s.Seal(nil, []byte(plain), clear))
	}
	check("acceptor-0", a.Session.Seal(nil, []byte("hello"), clear))
	nstest.ErrorIf(t, len(want) > 0, "not checked: %v", want)
}

// Whatever of a handshake differs between the sides or is changed on the way, there
// is no session.
func TestHandshakeRefuses(t *testing.T) {
	k, other := newPSK(t, 0), newPSK(t, 1)
	_, ask, _ := k.Request([]byte("asks"))
	nstest.WantErr(t, "request by another key", nstest.Err(other.Check(ask, []byte("asks"))), ErrProof)
	nstest.WantErr(t, "short key", nstest.Err(NewPSK(make([]byte, MinKey-1))), ErrKeyLength)
	rapid.Check(t, func(rt *rapid.T) {
		r, ask, err := k.Request([]byte("asks"))
		nstest.Must(rt, err)
		bad := bytes.Clone(ask)
		bad[rapid.IntRange(0, len(bad)-1).Draw(rt, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		for name, c := range map[string]struct{ share, bound []byte }{
			"changed": {bad, []byte("asks")}, "bound to other": {ask, []byte("ask")},
			"short": {ask[:ShareLen-1], []byte("asks")}, "none": {nil, []byte("asks")},
		} {
			if _, err := k.Check(c.share, c.bound); !errors.Is(err, ErrProof) {
				rt.Fatalf("request, %s: %v", name, err)
			}
		}
		o, err := k.Check(ask, []byte("asks"))
		nstest.Must(rt, err)
		a, err := o.Accept([]byte("answers"), Limits{})
		nstest.Must(rt, err)
		bad = bytes.Clone(a.Share)
		bad[rapid.IntRange(0, len(bad)-1).Draw(rt, "byte of the answer")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit of the answer")
		for name, c := range map[string]struct{ share, bound []byte }{
			"changed": {bad, []byte("answers")}, "bound to other": {a.Share, []byte("answer")},
			"turned back": {ask, []byte("answers")}, "zero point": {make([]byte, ShareLen), []byte("answers")}, "none": {nil, nil},
		} {
			if _, _, err := r.Finish(c.share, c.bound, Limits{}); !errors.Is(err, ErrProof) {
				rt.Fatalf("answer, %s: %v", name, err)
			}
		}
		// An answer to another request of the same program is none to this one.
		r2, _, _ := k.Request([]byte("asks"))
		if _, _, err := r2.Finish(a.Share, []byte("answers"), Limits{}); !errors.Is(err, ErrProof) {
			rt.Fatalf("answer to another request: %v", err)
		}
		if _, _, err := r.Finish(a.Share, []byte("answers"), Limits{}); err != nil {
			rt.Fatal(err)
		}
	})
}

// No bytes of a share bring Check or Finish down.
func FuzzShare(f *testing.F) {
	k := newPSK(f, 0)
	private, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{1}, 32))
	nstest.Must(f, err)
	r, ask := k.requestBy(private, nil)
	f.Add(ask)
	f.Add(make([]byte, ShareLen))
	f.Fuzz(func(t *testing.T, share []byte) {
		if _, err := k.Check(share, nil); err == nil && !bytes.Equal(share, ask) {
			t.Fatal("a forged request was taken")
		}
		if _, _, err := r.Finish(share, nil, Limits{}); err == nil {
			t.Fatal("a forged answer was taken")
		}
	})
}
