package vianet_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// The test binary is also the host that is killed.
const asVictim = "vianet-victim"

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asVictim: victim})
}

// deathTime is how soon a peer's death must be an error: 1.6 s of silence, and the time to detect it.
const deathTime = 2 * time.Second

const victimPort = "7"

// victim is a host that sends and checks the song on each connection, in messages of the length that the other side
// begins with; for length 0 it only waits. Its last argument is the mode of transfers.
func victim() error {
	nstest.EndWithTest()
	nic, err := vipl.OpenNIC("via0")
	if err != nil {
		return err
	}
	s, err := vianet.New(nic, vianet.Options{NoRDMARead: os.Args[2] == "write"})
	if err != nil {
		return err
	}
	l, err := s.Listen("via", ":"+victimPort)
	if err != nil {
		return err
	}
	fmt.Println("listens")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			var head [4]byte
			if _, err := io.ReadFull(c, head[:]); err != nil {
				return
			}
			if n := int(binary.BigEndian.Uint32(head[:])); n > 0 {
				go sing(c, n, new(atomic.Int64))
				fmt.Fprintln(os.Stderr, "the victim hears:", listen(c, n, new(atomic.Int64)))
			}
		}()
	}
}

// sing writes the song in messages of n bytes until there is an error, and counts them.
func sing(c net.Conn, n int, count *atomic.Int64) error {
	for at := 0; ; at += n {
		if err := say(c, at, []int{n}); err != nil {
			return err
		}
		count.Add(1)
	}
}

// listen reads the song and counts it.
func listen(c net.Conn, n int, count *atomic.Int64) error {
	for at := 0; ; at += n {
		if err := hear(c, at, n, func() int { return n }); err != nil {
			return err
		}
		count.Add(1)
	}
}

// loss is how a Read or Write of the survivor ended.
type loss struct {
	err error
	at  time.Time
}

// bereaved is a connection with the victim, with messages of a length in both directions; for length 0 a Read
// waits.
type bereaved struct {
	*vianet.Conn
	length         int
	written, heard atomic.Int64 // messages
}

// bereave connects with the victim. The outcomes of the Read and the Write come on losses.
func bereave(t *testing.T, s *vianet.Stack, host string, length int, losses chan<- loss) *bereaved {
	t.Helper()
	c, err := s.Dial("via", net.JoinHostPort(host, victimPort))
	must(t, err)
	b := &bereaved{Conn: c.(*vianet.Conn), length: length}
	must(t, errOf(b.Write(binary.BigEndian.AppendUint32(nil, uint32(length)))))
	ends := func(what string, f func() error) {
		err := f()
		losses <- loss{fmt.Errorf("%s of %d bytes: %w", what, length, err), time.Now()}
	}
	if length > 0 {
		go ends("Write", func() error { return sing(b, length, &b.written) })
		go ends("Read", func() error { return listen(b, length, &b.heard) })
	} else {
		go ends("Read", func() error { _, err := b.Read(make([]byte, 1)); return err })
	}
	return b
}

// isBusy reports whether messages flow; those of medium length must use rings.
func (b *bereaved) isBusy() bool {
	if b.length == 0 {
		return vianet.Reads(b.Conn)
	}
	return b.written.Load() > 2 && b.heard.Load() > 2 && vianet.Ringed(b.Conn) == (b.length == inRing)
}

const inRing = 64 << 10

// bereavedLengths are for a Read that waits, small messages, messages through rings, and transfers.
var bereavedLengths = []int{0, 100, inRing, 1 << 20}

// A peer's process is killed while connections with it are busy in all ways. Each pending Read and Write fails with
// ECONNRESET within two seconds, the connections' resources are released, and a restarted peer can be dialed.
// VIA_KILLS is the number of kills in each mode; each takes about three seconds.
func TestKilledPeer(t *testing.T) {
	for i, mode := range []string{"read", "write"} {
		t.Run(mode, func(t *testing.T) {
			na, nb := nstest.Pair(t, nstest.Options{})
			noLeaks(t)
			nic := openIn(t, na)
			nic.ErrorCallback(func(vipl.ErrorDescriptor) {}) // broken connections are meant
			s := newStack(t, nic, vianet.Options{NoRDMARead: mode == "write"})
			meter := schedlat.Start()
			defer meter.Close()
			tags, goroutines := nic.Status().Ptags, runtime.NumGoroutine()
			child, _ := nstest.Spawn(t, nb.Do, asVictim, mode)
			for round := range testsize.Number(t, "VIA_KILLS", 1, 1) {
				losses := make(chan loss, 2*len(bereavedLengths))
				var conns []*bereaved
				for _, n := range bereavedLengths {
					conns = append(conns, bereave(t, s, nb.IPv4.String(), n, losses))
				}
				for _, c := range conns {
					if !await.Comes(func() bool { return c.isBusy() || len(losses) > 0 }) {
						t.Fatalf("round %d: %d messages of %d bytes were written, and %d heard",
							round, c.written.Load(), c.length, c.heard.Load())
					}
				}
				time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // to be killed anywhere
				if len(losses) > 0 {
					t.Fatalf("round %d: before the death: %v", round, (<-losses).err)
				}
				killed := meter.Mark()
				child.Process.Kill()
				child.Wait()
				early := (round+i)%2 == 1 // it is there again before it is missed
				if early {
					child, _ = nstest.Spawn(t, nb.Do, asVictim, mode)
				}
				for range cap(losses) - 1 { // one only reads
					l := <-losses
					if !errors.Is(l.err, syscall.ECONNRESET) {
						t.Errorf("round %d: %v", round, l.err)
					}
					if took, most := l.at.Sub(killed.At), killed.Allow(deathTime); took > most {
						t.Errorf("round %d: %v after the death, and not %v: %v", round, took, most, l.err)
					}
				}
				for _, c := range conns {
					if _, err := c.Write([]byte{1}); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("round %d: a Write afterwards: %v", round, err)
					}
					check(t, c.Close())
				}
				left, running := "", 0
				if !await.Comes(func() bool {
					left, running = leftOf(s, nic, tags), runtime.NumGoroutine()
					return left == "" && running <= goroutines
				}) {
					t.Fatalf("round %d: %s; %d goroutines, %d before", round, left, running, goroutines)
				}
				if !early {
					child, _ = nstest.Spawn(t, nb.Do, asVictim, mode)
				}
			}
			again := bereave(t, s, nb.IPv4.String(), 1<<20, make(chan loss, 2))
			await.Until(t, "the peer that was started again answers", again.isBusy)
			again.Close()
			if n := nic.Counters().Reads; n > 0 != (mode == "read") {
				t.Errorf("peers have read %d times", n)
			}
		})
	}
}
