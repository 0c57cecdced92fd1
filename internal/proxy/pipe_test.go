package proxy

import (
	"bytes"
	"io"
	"net"
	"testing"
)

// witness is a connection of whose stream nothing comes, and that looks at what it is read
// into.
type witness struct {
	net.Conn
	saw *[]byte
}

func (w witness) Read(b []byte) (int, error) {
	*w.saw = bytes.Clone(b)
	return 0, io.EOF
}

// What a peer has sent is not in the buffer for another one, who may say that it has
// written there and have not.
func TestBuffersAreEmpty(t *testing.T) {
	for range 100 { // the pool keeps not all that it gets
		b := buffers.Get().(*[]byte)
		copy(*b, "secret")
		buffers.Put(b)
		a, c := net.Pipe()
		var saw []byte
		if err := pipe(c, witness{a, &saw}, nil); err != nil {
			t.Fatal(err)
		}
		a.Close()
		c.Close()
		if len(saw) == 0 || len(bytes.Trim(saw, "\x00")) > 0 {
			t.Fatalf("in a buffer of %d bytes: %q", len(saw), bytes.Trim(saw, "\x00"))
		}
	}
}
