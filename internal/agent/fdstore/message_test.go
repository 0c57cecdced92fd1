package fdstore

import (
	"encoding/json"
	"reflect"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// Any input is a message that survives writing and reading, or an error.
func FuzzMessage(f *testing.F) {
	for _, m := range []message{
		{Op: "put", Key: "vi/eth0/10001", Value: []byte(`{"x":1}`), Ack: true},
		{Op: "delete", Key: "nic/eth0"}, {Op: "list", Ack: true}, {Op: "done", Error: "no"}, {Op: "replaced"},
	} {
		b, err := json.Marshal(m)
		nstest.Must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"Op":"put","Value":"AA"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		if len(m.Value) == 0 {
			m.Value = nil // it is left out
		}
		again, err := json.Marshal(m)
		nstest.Must(t, err)
		if n, err := parse(again); err != nil || !reflect.DeepEqual(m, n) {
			t.Fatalf("%+v is read again as %+v, %v", m, n, err)
		}
	})
}
