package wire

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// A frame's messages come out as they went in.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Record {
			m := Record{
				Data:         rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "data"),
				HasImmediate: rapid.Bool().Draw(t, "immediate"), Write: rapid.Bool().Draw(t, "write"),
			}
			if m.HasImmediate {
				m.Immediate = rapid.Uint32().Draw(t, "value")
			}
			if m.Write {
				m.RemoteAddr, m.RemoteHandle = rapid.Uint64().Draw(t, "address"), rapid.Uint32().Draw(t, "handle")
			}
			return m
		}), 0, 30).Draw(t, "messages")
		size := 0
		for _, m := range list {
			size += m.Len(len(m.Data))
		}
		frame := bytes.Repeat([]byte{0xee}, size)
		rest := frame
		for _, m := range list {
			copy(m.Put(rest, len(m.Data)), m.Data)
			rest = rest[m.Len(len(m.Data)):]
		}
		if len(rest) != 0 {
			t.Fatalf("%d bytes too many", len(rest))
		}
		rest = frame
		var r Record
		for i, m := range list {
			var ok bool
			if rest, ok = r.Next(rest); !ok || !cmp.Equal(r, m, cmpopts.EquateEmpty()) {
				t.Fatalf("message %d: %+v, %v", i, r, ok)
			}
		}
		if len(rest) != 0 {
			t.Fatalf("%d bytes are left", len(rest))
		}
	})
}

// The bytes of records, and those that are none.
func TestRecordBytes(t *testing.T) {
	for _, c := range []struct {
		r    Record
		want string
	}{
		{Record{}, "000200006869"},
		{Record{HasImmediate: true, Immediate: 0x01020304}, "00020004010203046869"},
		{Record{Write: true, RemoteAddr: 0x1112131415161718, RemoteHandle: 0x21222324}, "000201001112131415161718212223246869"},
		{Record{HasImmediate: true, Immediate: 1, Write: true, RemoteHandle: 2}, "00020104000000010000000000000000000000026869"},
	} {
		b := make([]byte, c.r.Len(2))
		copy(c.r.Put(b, 2), "hi")
		got := hex.EncodeToString(b)
		nstest.ErrorIf(t, got != c.want, "record %s, want %s", got, c.want)
		for n := range b {
			if _, ok := new(Record).Next(b[:n]); ok {
				t.Errorf("%x was taken", b[:n])
			}
		}
	}
	for _, digits := range []string{"00000001", "0000000c", "0000020000000000000000000000000000", "ffff0000"} {
		bad, _ := hex.DecodeString(digits)
		if _, ok := new(Record).Next(bad); ok {
			t.Errorf("%s was taken", digits)
		}
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte{0, 2, 0, 4, 1, 2, 3, 4, 'h', 'i', 0, 0, 0, 0})
	f.Add([]byte{0, 1, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 'h'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		for rest, ok := r.Next(b); ok; rest, ok = r.Next(rest) {
			n := r.Len(len(r.Data))
			nstest.FatalIf(t, n+len(rest) != len(b), "%d bytes taken of %d, %d left", n, len(b), len(rest))
			again := make([]byte, r.Len(len(r.Data)))
			copy(r.Put(again, len(r.Data)), r.Data)
			nstest.FatalIf(t, !bytes.HasPrefix(b, again), "%x reads as what is written as %x", b, again)
			b = rest
		}
	})
}
