package vipl_test

import (
	"slices"
	"testing"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/tsc"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// plainPort is a queue in memory that does no more than it must: what a
// benchmark sees beside it is the engine. Both ends belong to one goroutine.
type plainPort struct {
	mem    []byte
	free   []uint64 // TX chunks
	queued []plainFrame
	rx     []uint64 // free RX chunks
	in     []xdpnic.Frame
	peer   *plainPort
	rings  func() // called at a doorbell for frames, before anything is done, if not nil
}

type plainFrame struct {
	addr   uint64
	n      int
	retain bool
}

const plainChunks, plainChunk = 64, 2048

func newPlainPort(mem []byte) *plainPort {
	p := &plainPort{mem: mem}
	for i := range plainChunks {
		p.rx = append(p.rx, uint64(i*plainChunk))
		p.free = append(p.free, uint64((plainChunks+i)*plainChunk))
	}
	return p
}

func (p *plainPort) Alloc() (addr uint64, buf []byte, ok bool) {
	if len(p.free) == 0 {
		return 0, nil, false
	}
	addr = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return addr, p.mem[addr : addr+plainChunk], true
}

func (p *plainPort) Release(addr uint64) { p.free = append(p.free, addr) }
func (p *plainPort) TxFree() int         { return len(p.free) }

func (p *plainPort) Send(addr uint64, n int, retain bool) bool {
	p.queued = append(p.queued, plainFrame{addr, n, retain})
	return true
}

func (p *plainPort) SendSegs([]xdpnic.Desc, bool) bool { return false }
func (p *plainPort) MaxSegs() int                      { return 1 }
func (p *plainPort) InFlight(uint64) bool              { return false }
func (p *plainPort) Pending() int                      { return len(p.queued) }
func (p *plainPort) Reap() int                         { return 0 }

func (p *plainPort) Flush() error {
	if p.rings != nil && len(p.queued) > 0 {
		p.rings()
	}
	to := p.peer
	for _, f := range p.queued {
		at := to.rx[len(to.rx)-1]
		to.rx = to.rx[:len(to.rx)-1]
		b := to.mem[at+256 : at+256+uint64(copy(to.mem[at+256:at+plainChunk], p.mem[f.addr:f.addr+uint64(f.n)]))]
		to.in = append(to.in, xdpnic.Frame{Addr: at + 256, Data: b})
		if !f.retain {
			p.Release(f.addr)
		}
	}
	p.queued = p.queued[:0]
	return nil
}

func (p *plainPort) Receive(frames []xdpnic.Frame) int {
	n := copy(frames, p.in)
	p.in = append(p.in[:0], p.in[n:]...)
	return n
}

func (p *plainPort) Reading(uint64) bool        { return false }
func (p *plainPort) Cancel(uint64) bool         { return true }
func (p *plainPort) Recycle(addr uint64)        { p.rx = append(p.rx, addr-256) }
func (p *plainPort) Refill()                    {}
func (p *plainPort) Ready() bool                { return len(p.in) > 0 }
func (p *plainPort) Wait(d time.Duration) error { time.Sleep(min(d, time.Millisecond)); return nil }
func (p *plainPort) Wake()                      {}
func (p *plainPort) FrameCap() (tx, rx int)     { return plainChunk, plainChunk - 256 }
func (p *plainPort) RxChunks() int              { return plainChunks }

// plainEnd is a NIC on a plain port, and a connected VI of it with memory: the first
// half of the descriptors is posted to receive.
type plainEnd struct {
	port *plainPort
	nic  *vipl.NIC
	vi   *vipl.VI
	*box
}

func plainEnds(t testing.TB, level vipl.ReliabilityLevel, descs int) (ends [2]*plainEnd) {
	t.Helper()
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	for i, name := range []string{"a", "b"} {
		arena, err := hugepages.New(hugepages.Config{Size: 4 << 20, Reserve: 2 * plainChunks * plainChunk, Policy: hugepages.Avoid})
		must(t, err)
		e := &plainEnd{port: newPlainPort(arena.Bytes())}
		p := vipl.Provider{Port: e.port, Agent: fabric.Agent(name), Arena: arena, Silence: time.Hour}
		e.nic, err = vipl.Open(vipl.OnSteadyClock(p))
		must(t, err)
		t.Cleanup(func() { e.nic.Close() })
		e.box = newBox(t, e.nic, descs, 64)
		ends[i] = e
	}
	a, b := ends[0], ends[1]
	a.port.peer, b.port.peer = b.port, a.port
	a.vi, b.vi = connect(t, a.nic, b.nic, level)
	for _, e := range ends {
		for i := range e.desc {
			e.desc[i].SetSegments(e.segs[i])
		}
		must(t, errOf(e.vi.PostRecvs(e.desc[:descs/2], e.region.Handle())))
	}
	return ends
}

// poll polls for a receive, and returns false when the connection ended.
func poll(v *vipl.VI) bool {
	for {
		_, err := v.RecvDone()
		if err == nil {
			return true
		}
		if err == vipl.ErrDescriptor {
			return false
		}
	}
}

// BenchmarkEngineAlone is half of a round trip of 64 bytes without kernel and
// without fake: a post, a message received and the completions. On a busy machine,
// too, a twentieth of its parts of a fraction of a millisecond run undisturbed: so
// much is the greatest of them, of the whole, from the post to the doorbell, and from
// a frame to the program.
func BenchmarkEngineAlone(b *testing.B) {
	for _, level := range levels {
		b.Run(level.String(), func(b *testing.B) {
			ends := plainEnds(b, level, 4)
			var rung uint64
			for _, e := range ends {
				e.port.rings = func() {
					if rung == 0 {
						rung = tsc.Read()
					}
				}
			}
			half := func(from, to *plainEnd, i int) (post, recv uint64) {
				rung = 0
				start := tsc.Read()
				from.vi.PostSend(from.desc[2+i%2], from.region.Handle())
				post = rung - start
				from.vi.SendDone()
				start = tsc.Read()
				fatalIf(b, !poll(to.vi), "connection ended")
				recv = tsc.Read() - start
				to.vi.PostRecv(to.desc[i%2], to.region.Handle())
				return post, recv
			}
			const part = 500
			var wholes, posts, recvs []uint64
			b.ReportAllocs()
			for b.Loop() {
				var post, recv uint64
				start := tsc.Read()
				for i := range part {
					p, r := half(ends[i%2], ends[1-i%2], i/2)
					post, recv = post+p, recv+r
				}
				wholes, posts, recvs = append(wholes, tsc.Read()-start), append(posts, post), append(recvs, recv)
			}
			b.ReportMetric(quiet(wholes, part), "ns/one-way")
			b.ReportMetric(quiet(posts, part), "ns/post")
			b.ReportMetric(quiet(recvs, part), "ns/recv")
		})
	}
}

// BenchmarkListAlone is a message of a stream of 64 bytes, in lists of 16, both
// sides.
func BenchmarkListAlone(b *testing.B) {
	const messages, list = 512, 16
	ends := plainEnds(b, vipl.ReliableDelivery, 2*messages)
	from, to := ends[0], ends[1]
	var taken [list]*vipl.Descriptor
	sent, came := 0, 0
	take := func() {
		n, _ := from.vi.SendDones(taken[:])
		sent += n
		for n = list; n == list; came += n {
			n, _ = to.vi.RecvDones(taken[:])
			to.vi.PostRecvs(taken[:n], to.region.Handle())
		}
	}
	var wholes []uint64
	b.ReportAllocs()
	for b.Loop() {
		sent, came = 0, 0
		start := tsc.Read()
		for i := 0; i < messages; i += list {
			from.vi.PostSends(from.desc[messages+i:messages+i+list], from.region.Handle())
			take()
		}
		for sent < messages || came < messages {
			take()
		}
		wholes = append(wholes, tsc.Read()-start)
	}
	b.ReportMetric(quiet(wholes, messages), "ns/message")
}

// quiet returns the time in ns for one of n, from the twentieth of the samples that was least disturbed; 0 if
// the processor's counter gives no time.
func quiet(samples []uint64, n int) float64 {
	rate, _ := tsc.Rate()
	slices.Sort(samples)
	return float64(samples[len(samples)/20]*rate>>32) / float64(n)
}
