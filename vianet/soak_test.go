package vianet_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

const (
	songLength   = 1_000_003 // a prime: each time it begins elsewhere in buffers and rings
	longestVerse = 1 << 20
)

// song is the content of endless streams.
var song = bytes.Repeat(randomBytes(songLength, 55), 3)

// verse is n bytes of the song from byte at of the stream on.
func verse(at, n int) []byte { return song[at%songLength:][:n] }

// say writes messages of these sizes to a stream that has come to byte at.
func say(c net.Conn, at int, sizes []int) error {
	for _, n := range sizes {
		if k, err := c.Write(verse(at, n)); k != n || err != nil {
			return fmt.Errorf("byte %d: %d of %d bytes written, %w", at, k, n, err)
		}
		at += n
	}
	return nil
}

// hear reads n bytes of a stream that has come to byte at; next returns how many to read at a time.
func hear(c net.Conn, at, n int, next func() int) error {
	buf := make([]byte, longestVerse)
	for end := at + n; at < end; {
		k, err := c.Read(buf[:min(next(), end-at)])
		if !bytes.Equal(buf[:k], verse(at, k)) {
			return fmt.Errorf("other bytes among the %d from byte %d on", k, at)
		}
		if at += k; err != nil {
			return fmt.Errorf("byte %d of %d: %w", at, end, err)
		}
	}
	return nil
}

// anySize is 1 byte to 300 KiB: mostly less than a message holds, one in sixteen more.
func anySize(r *rand.Rand) int {
	if r.IntN(16) > 0 {
		return 1 + r.IntN(1<<r.IntN(13))
	}
	return 1 + r.IntN(min(1<<(13+r.IntN(7)), 300<<10))
}

// Messages of random sizes in both directions of one connection at once, over all data paths and with losses. The
// bytes read are the bytes written. After each round nothing is missing or left over: no credit, buffer, ring space,
// registration or goroutine. VIA_MESSAGES=1000000 takes minutes.
func TestNothingIsLost(t *testing.T) {
	const mostOfRound, registered = 2000, 200_000
	ways := []int{0, 1, 3}
	each := (testsize.Number(t, "VIA_MESSAGES", 6000, 30_000) + 2*len(ways) - 1) / (2 * len(ways))
	for _, l := range ways {
		t.Run(configurations[l].name, func(t *testing.T) {
			o := configurations[l].options
			o.Registered = registered // most must go, some at once
			h := inMemory(t, o)
			h.wire.SetFaults(xdpnictest.Faults{Seed: 11, Loss: 0.01, Dup: 0.005, Reorder: 0.01, Jitter: 10 * time.Microsecond})
			a, b := h.pair(t)
			sides := [2]*vianet.Conn{a, b}
			var at [2]int
			goroutines, start := 0, time.Now()
			for round, left := uint64(1), each; left > 0 && !t.Failed(); round++ {
				n := min(left, mostOfRound)
				left -= n
				var both sync.WaitGroup
				for i := range sides {
					r := rand.New(rand.NewPCG(round, uint64(i)))
					sizes, total := make([]int, n), 0
					for k := range sizes {
						sizes[k] = anySize(r)
						total += sizes[k]
					}
					from := at[i]
					at[i] += total
					talk := func(f func() error) {
						both.Go(func() {
							if err := f(); err != nil {
								t.Errorf("round %d, side %d: %v", round, i, err)
								a.Close()
								b.Close()
							}
						})
					}
					talk(func() error { return say(sides[i], from, sizes) })
					talk(func() error { return hear(sides[1-i], from, total, func() int { return anySize(r) }) })
				}
				both.Wait()
				if t.Failed() {
					return
				}
				balanced(t, a, b)
				if round == 1 {
					goroutines = runtime.NumGoroutine()
				}
				h.onlyOne(t, sides, goroutines, registered)
			}
			took := time.Since(start)
			for i, n := range []*vipl.NIC{h.nicA, h.nicB} {
				if s := n.Counters(); configurations[l].name == "read" && s.Reads == 0 || s.Writes == 0 || s.Resent == 0 {
					t.Errorf("side %d: not all ways were taken: %+v", i, s)
				}
			}
			t.Logf("%d Writes of %d bytes in %v; %d and %d frames were sent again", 2*each, at[0]+at[1],
				took.Round(time.Millisecond), h.nicA.Counters().Resent, h.nicB.Counters().Resent)
			a.Close()
			b.Close()
			h.atRest(t)
		})
	}
}

// onlyOne waits until the stacks have no more than one idle connection needs: the region of its buffers and that of
// its ring, and registered memory within bounds.
func (h *hosts) onlyOne(t *testing.T, sides [2]*vianet.Conn, goroutines, registered int) {
	t.Helper()
	why := ""
	if !await.Comes(func() bool {
		why = ""
		for i, s := range []*vianet.Stack{h.a, h.b} {
			kept, _ := vianet.Kept(s)
			own := 1
			if vianet.HasRing(sides[i]) {
				own++
			}
			status := []*vipl.NIC{h.nicA, h.nicB}[i].Status()
			if status.Mem.Regions != kept+own || len(status.VIs) != 1 || vianet.KeptBytes(s) > registered {
				why += fmt.Sprintf("host %d: %d regions, %d kept, %d bytes, and %d of the connection; %d VIs\n",
					i, status.Mem.Regions, kept, vianet.KeptBytes(s), own, len(status.VIs))
			}
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			why += fmt.Sprintf("%d goroutines, %d after the first round\n", n, goroutines)
		}
		return why == ""
	}) {
		t.Error(why)
	}
}
