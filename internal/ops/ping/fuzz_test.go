package ping

import (
	"testing"

	"viaxdp/internal/base/wire"
)

// Whatever comes from the network is an answer only with the number of the question, or of another version.
func FuzzAnswer(f *testing.F) {
	const id = 77
	for _, m := range []wire.CM{
		{Type: wire.CMNoMatch, ID: id},
		{Type: wire.CMNoMatch, ID: id + 1},
		{Type: wire.CMReject, ID: id, Reason: wire.CMReasonProgram},
	} {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{wire.Version + 1, byte(wire.KindConnect)})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := answer(b, id)
		if !ok {
			return
		}
		if m, err := wire.ParseCM(b); b[0] == wire.Version && (err != nil || m.ID != id) || r.Version != b[0]&0xf {
			t.Errorf("%x is an answer: %+v", b, r)
		}
	})
}
