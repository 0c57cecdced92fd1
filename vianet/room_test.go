package vianet_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vianet"
	"viaxdp/vipl"
)

// A receiver that names a room which it cannot have been asked for.
func TestRoomLies(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	for name, test := range map[string]struct {
		lie func(p *peer, m message) message
		why string
	}{
		"more than was asked": {func(p *peer, m message) message {
			return message{kind: room, id: m.id, length: m.length + 1, handle: p.region.Handle(), addr: p.region.Addr()}
		}, wrongMove},
		"of another": {func(p *peer, m message) message {
			return message{kind: room, id: m.id + 1, length: m.length, handle: p.region.Handle(), addr: p.region.Addr()}
		}, wrongMove},
		"taken without a withdrawal": {func(p *peer, m message) message {
			return message{kind: taken, id: m.id}
		}, wrongMove},
		"nowhere": {func(p *peer, m message) message {
			return message{kind: room, id: m.id, length: m.length, handle: p.region.Handle() + 1, addr: p.region.Addr()}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := h.met(t, true)
			done := make(chan error, 1)
			go func() {
				_, err := c.Write(make([]byte, 100_000))
				for err == nil { // it may be done before the peer's NIC refuses
					_, err = c.Write(make([]byte, 1))
				}
				done <- err
			}()
			p.send(test.lie(p, p.receive(ask)))
			isReset(t, <-done, test.why)
		})
	}
}

// A room is closed again before Read returns: what the peer still writes does not arrive, and ends the connection.
func TestRoomIsClosed(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	p, c := h.met(t, false)
	p.send(message{kind: ask, id: 1, length: 200_000})
	buf := make([]byte, 70_000)
	done := make(chan error, 1)
	go func() {
		n, err := c.Read(buf)
		if n != len(buf) {
			t.Errorf("Read gave %d bytes", n)
		}
		done <- err
	}()
	m := p.receive(room)
	if m.length != 70_000 {
		t.Fatalf("a room of %d bytes", m.length)
	}
	to := vipl.AddressSegment{Data: m.addr, Handle: m.handle}
	copy(p.region.Bytes()[64:], "honest")
	p.write(to, 10)
	p.send(message{kind: filled, id: 1, length: 70_000})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(buf, []byte("honest")) {
		t.Errorf("%q", buf[:10])
	}
	copy(p.region.Bytes()[64:], "forged")
	p.write(to, 10)
	p.isOver()
	if !bytes.HasPrefix(buf, []byte("honest")) {
		t.Errorf("written after the Read: %q", buf[:10])
	}
	_, err := c.Read(buf)
	isReset(t, err, "")
}

// A peer that says that it has filled a room, and has not, does not have the program read what another connection has
// brought there.
func TestRoomIsNotFilled(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	l := h.listen(t)
	defer l.Close()
	victim, c := h.pair(t)
	secret := bytes.Repeat([]byte("secret"), 20_000)
	wrote := goWrite(victim, secret)
	for range len(secret) / 1000 { // by staging buffers
		if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	p := h.meet(t, l, false)
	p.greet()
	c = accept(t, l)
	const n = 100_000
	p.send(message{kind: ask, id: 1, length: n})
	got := make(chan []byte, 1)
	go func() {
		b := make([]byte, n)
		for i := 0; i < n; i += 1000 {
			if _, err := io.ReadFull(c, b[i:][:1000]); err != nil {
				t.Error(err)
			}
		}
		got <- b
	}()
	for left := n; left > 0; {
		m := p.receive(room)
		p.send(message{kind: filled, id: 1, length: m.length})
		left -= int(m.length)
	}
	if b := <-got; bytes.Contains(b, []byte("secret")) {
		t.Error("the program has read what is another's")
	}
}

// A peer that fills the room of a Read late, longer after than it has to let go, has not done wrong: nobody has asked
// it to.
func TestRoomIsFilledLate(t *testing.T) { synctest.Test(t, roomIsFilledLate) }

func roomIsFilledLate(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true, Spin: asleep.Spin})
	p, c := h.met(t, false)
	const n = 70_000
	p.send(message{kind: ask, id: 1, length: n})
	done := make(chan error, 1)
	go func() {
		k, err := c.Read(make([]byte, n))
		if k != n {
			t.Errorf("Read gave %d bytes", k)
		}
		done <- err
	}()
	p.receive(room)
	time.Sleep(vianet.SettleTime + 500*time.Millisecond)
	p.send(message{kind: filled, id: 1, length: n})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A peer that does not fill the room of a Read cannot hold it past its deadline, Close or CloseRead for ever.
func TestRoomUnanswered(t *testing.T) {
	h := inMemory(t, vianet.Options{NoRDMARead: true})
	for name, test := range map[string]struct {
		end  func(c *vianet.Conn) error
		want error
	}{
		"deadline": {func(c *vianet.Conn) error { return c.SetReadDeadline(longAgo) }, os.ErrDeadlineExceeded},
		"close":    {func(c *vianet.Conn) error { return c.Close() }, net.ErrClosed},
		"stop":     {func(c *vianet.Conn) error { return c.CloseRead() }, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := h.met(t, false)
			p.send(message{kind: ask, id: 1, length: 70_000})
			done := goRead(c, 70_000)
			p.receive(room)
			if err := test.end(c); err != nil {
				t.Error(err)
			}
			if err := <-done; !errors.Is(err, test.want) {
				t.Errorf("Read: %v", err)
			}
			p.isOver()
		})
	}
}
