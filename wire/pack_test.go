package wire

import (
	"bytes"
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

// A frame's messages come out as they went in.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type message struct {
			data      []byte
			immediate bool
			value     uint32
		}
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) message {
			m := message{data: rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "data"), immediate: rapid.Bool().Draw(t, "immediate")}
			if m.immediate {
				m.value = rapid.Uint32().Draw(t, "value")
			}
			return m
		}), 0, 30).Draw(t, "messages")
		size := 0
		for _, m := range list {
			size += RecordLen(len(m.data), m.immediate)
		}
		frame := bytes.Repeat([]byte{0xee}, size)
		rest := frame
		for _, m := range list {
			copy(PutRecord(rest, len(m.data), m.immediate, m.value), m.data)
			rest = rest[RecordLen(len(m.data), m.immediate):]
		}
		if len(rest) != 0 {
			t.Fatalf("%d bytes too many", len(rest))
		}
		rest = frame
		var r Record
		for i, m := range list {
			var ok bool
			if rest, ok = r.Next(rest); !ok || !bytes.Equal(r.Data, m.data) || r.HasImmediate != m.immediate || r.Immediate != m.value {
				t.Fatalf("message %d: %+v, %v", i, r, ok)
			}
		}
		if len(rest) != 0 {
			t.Fatalf("%d bytes are left", len(rest))
		}
	})
}

// The bytes of a record, and those that are none.
func TestRecordBytes(t *testing.T) {
	b := make([]byte, 10)
	copy(PutRecord(b, 2, true, 0x01020304), "hi")
	if got := hex.EncodeToString(b); got != "00020004010203046869" {
		t.Errorf("record %s", got)
	}
	for _, digits := range []string{"", "000000", "00010000", "0000000400000", "00000001", "0000000c", "ffff0000", "00020004010203046"} {
		bad, _ := hex.DecodeString(digits[:len(digits)/2*2])
		if _, ok := new(Record).Next(bad); ok {
			t.Errorf("%s was taken", digits)
		}
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte{0, 2, 0, 4, 1, 2, 3, 4, 'h', 'i', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		for rest, ok := r.Next(b); ok; rest, ok = r.Next(rest) {
			if n := RecordLen(len(r.Data), r.HasImmediate); n+len(rest) != len(b) {
				t.Fatalf("%d bytes taken of %d, %d left", n, len(b), len(rest))
			}
			again := make([]byte, RecordLen(len(r.Data), r.HasImmediate))
			copy(PutRecord(again, len(r.Data), r.HasImmediate, r.Immediate), r.Data)
			if !bytes.HasPrefix(b, again) {
				t.Fatalf("%x reads as what is written as %x", b, again)
			}
			b = rest
		}
	})
}
