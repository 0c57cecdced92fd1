package vipl_test

import (
	"testing"
	"time"

	"viaxdp/hugepages"
	"viaxdp/kagent/kagenttest"
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

func (p *plainPort) Recycle(addr uint64)        { p.rx = append(p.rx, addr-256) }
func (p *plainPort) Refill()                    {}
func (p *plainPort) Ready() bool                { return len(p.in) > 0 }
func (p *plainPort) Wait(d time.Duration) error { time.Sleep(min(d, time.Millisecond)); return nil }
func (p *plainPort) Wake()                      {}
func (p *plainPort) FrameCap() (tx, rx int)     { return plainChunk, plainChunk - 256 }
func (p *plainPort) RxChunks() int              { return plainChunks }

// BenchmarkEngineAlone is half of a round trip of 64 bytes without kernel and
// without fake: a post, a message received and the completions.
func BenchmarkEngineAlone(b *testing.B) {
	for _, level := range levels {
		b.Run(level.String(), func(b *testing.B) {
			fabric := kagenttest.NewFabric(kagenttest.Faults{})
			var nics [2]*vipl.Nic
			var ports [2]*plainPort
			for i, name := range []string{"a", "b"} {
				arena, err := hugepages.New(hugepages.Config{Size: 4 << 20, Reserve: 2 * plainChunks * plainChunk, Policy: hugepages.Avoid})
				if err != nil {
					b.Fatal(err)
				}
				ports[i] = newPlainPort(arena.Bytes())
				if nics[i], err = vipl.Open(vipl.Provider{Port: ports[i], Agent: fabric.Agent(name), Arena: arena, Silence: time.Hour}); err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { nics[i].Close() })
			}
			ports[0].peer, ports[1].peer = ports[1], ports[0]
			va, vb := connect(b, nics[0], nics[1], level)
			xa, xb := newBox(b, nics[0], 4, 64), newBox(b, nics[1], 4, 64)
			for _, x := range []*box{xa, xb} {
				for i := range x.desc {
					x.desc[i].SetSegments(x.segs[i])
				}
			}
			for i := range 2 {
				va.PostRecv(xa.desc[i], xa.region.Handle())
				vb.PostRecv(xb.desc[i], xb.region.Handle())
			}
			half := func(v *vipl.VI, x *box, w *vipl.VI, y *box, i int) {
				v.PostSend(x.desc[2+i%2], x.region.Handle())
				v.SendDone()
				if !poll(w) {
					b.Fatal("connection ended")
				}
				w.PostRecv(y.desc[i%2], y.region.Handle())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				half(va, xa, vb, xb, i)
				half(vb, xb, va, xa, i)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/one-way")
		})
	}
}
