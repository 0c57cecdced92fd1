package torture

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// NICConfig says how a worker opens its interface.
type NICConfig struct {
	RxChunks int           // 0: vipl.DefaultRxChunks
	TxChunks int           // 0: xdpnic.DefaultChunks
	Arena    int           // bytes of memory; 0: kagent.DefaultArena
	Silence  time.Duration // 0: vipl.DefaultSilence
	Sealed   bool          // connections have a pre-shared key, the same for all workers
	Native   bool          // the XDP program runs in the driver; else where xdpnic.ModeAuto puts it, on veth in generic code
	Loss     float64       // share of the frames and GSO packets that arrive which the queue loses
	Agent    string        // socket of the agent that opens it; empty: the worker does
}

// nic is a NIC handle whose chunks are all accounted for.
type nic struct {
	*vipl.NIC
	opened opened
	meter  *meter
	txFree int // chunks free when it was opened

	// At the last count.
	stats   xdpnic.Stats
	lacking []string
}

// meter is the queue as the engine drives it, with a count of the leases.
type meter struct {
	*xdpnic.Queue
	leased  int // frames received and not recycled
	calls   chan func()
	leastTx atomic.Int64 // fewest free TX chunks that the engine has met

	loss      float64 // NICConfig.Loss
	discarded atomic.Uint64
}

func (m *meter) TxFree() int {
	n := m.Queue.TxFree()
	if int64(n) < m.leastTx.Load() {
		m.leastTx.Store(int64(n))
	}
	return n
}

// Receive is called by the engine each time that it polls the queue, which it owns then.
func (m *meter) Receive(frames []xdpnic.Frame) int {
	select {
	case f := <-m.calls:
		f()
	default:
	}
	n := m.Queue.Receive(frames)
	if m.loss > 0 {
		n = m.lose(frames[:n])
	}
	m.leased += n
	return n
}

// lose discards some of the frames, each with all of its chunks, and returns how many chunks are left.
func (m *meter) lose(frames []xdpnic.Frame) (n int) {
	for i, k := 0, 0; i < len(frames); i = k {
		for k = i + 1; frames[k-1].More && k < len(frames); k++ {
		}
		if rand.Float64() >= m.loss {
			n += copy(frames[n:], frames[i:k])
			continue
		}
		m.discarded.Add(1)
		for _, f := range frames[i:k] {
			m.Queue.Recycle(f.Addr)
		}
	}
	return n
}

func (m *meter) Recycle(addr uint64) {
	m.leased--
	m.Queue.Recycle(addr)
}

// opened is what a Kernel Agent has opened.
type opened interface {
	kagent.Agent
	Queue() *xdpnic.Queue
	Arena() *hugepages.Arena
	Info() kagent.Info
	Counters() (bpf.Counters, error)
}

// openAgent opens a queue by the agent at a socket; without a socket this process does.
func openAgent(socket string, cfg kagent.Config) opened {
	if socket == "" {
		return fail.Must(device.Open(cfg))
	}
	return fail.Must(agentclient.Open(socket, true, cfg))
}

// counted is an agent that counts in Close: the engine has stopped, and the queue still exists.
type counted struct {
	opened
	last func()
}

func (a counted) Close() error {
	a.last()
	return a.opened.Close()
}

// openNIC does what vipl.OpenNIC does, with the accounting in between.
func openNIC(cfg NICConfig) (_ *nic, err error) {
	rx := cmp.Or(cfg.RxChunks, vipl.DefaultRxChunks)
	mode := xdpnic.ModeAuto
	if cfg.Native {
		mode = xdpnic.ModeNative
	}
	n := &nic{}
	open := func() {
		n.opened = openAgent(cfg.Agent, kagent.Config{
			Interface: Interface, Queue: kagent.AnyQueue, RxChunks: rx, TxChunks: cfg.TxChunks,
			ArenaBytes: cfg.Arena, Hugepages: hugepages.Avoid, Mode: mode, RequireMode: cfg.Native,
		})
	}
	// A killed worker keeps its queue until the agent notices the death.
	err = fail.Try(open)
	for end := time.Now().Add(countWithin); cfg.Agent != "" && errors.Is(err, kagent.ErrQueueInUse) && time.Now().Before(end); err = fail.Try(open) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	queue := n.opened.Queue()
	n.meter, n.txFree = &meter{Queue: queue, calls: make(chan func()), loss: cfg.Loss}, queue.TxFree()
	n.meter.leastTx.Store(int64(n.txFree))
	p := provider.Provider{
		Port: n.meter, Agent: counted{n.opened, n.count}, Arena: n.opened.Arena(), Info: n.opened.Info(),
	}
	defer func() {
		if err != nil {
			if p.GSO != nil {
				err = errors.Join(err, p.GSO.Close())
			}
			err = errors.Join(err, n.opened.Close())
		}
	}()
	defer fail.Catch(&err)
	var psk *vipl.PSK
	if cfg.Sealed {
		psk = fail.Must(vipl.NewPSK([]byte("the workers' key, 32 bytes of it.")))
	}
	if p.Info.Mode.Generic() {
		fail.If(p.OpenGSO(queue.FD(), true))
	}
	n.NIC = fail.Must(provider.OpenNIC[*vipl.NIC](p, vipl.WithSilence(cfg.Silence), vipl.WithPSK(psk)))
	n.ErrorCallback(func(vipl.ErrorDescriptor) {}) // the flows look at their VIs
	return n, nil
}

// drainWithin is how long the kernel may take to complete what it was sent.
const drainWithin = 5 * time.Second

// count looks for chunks that were not given back, and keeps the queue's counters. The engine has stopped.
func (n *nic) count() {
	q := n.meter.Queue
	for end := time.Now().Add(drainWithin); q.TxFree() < n.txFree && time.Now().Before(end); time.Sleep(time.Millisecond) {
		q.Flush()
		q.Reap()
		// An interface that is gone or down completes nothing; that is reported below.
		if _, err := net.InterfaceByIndex(n.opened.Info().Index); err != nil {
			break
		}
	}
	n.lacking = n.audit()
}

// countWithin is how long the engine may take to poll its queue on a busy machine: less than hearTime.
const countWithin = hearTime / 2

// countRunning is count while the engine runs. No VI is connected, so that it has nothing to do.
func (n *nic) countRunning() {
	n.lacking = []string{"the engine does not look at its queue"}
	for end := time.Now().Add(countWithin); ; time.Sleep(time.Millisecond) {
		looked := make(chan []string, 1)
		n.meter.Wake()
		select {
		case n.meter.calls <- func() { n.meter.Reap(); looked <- n.audit() }:
			n.lacking = <-looked
		case <-time.After(10 * time.Millisecond):
		}
		if n.lacking == nil || time.Now().After(end) {
			return
		}
	}
}

// audit returns what is out of place when nothing is under way. The caller owns the queue.
func (n *nic) audit() (lacking []string) {
	q := n.meter.Queue
	if free := q.TxFree(); free != n.txFree {
		lacking = append(lacking, fmt.Sprintf("%d of %d TX chunks are not free", n.txFree-free, n.txFree))
	}
	if n.meter.leased != 0 {
		lacking = append(lacking, fmt.Sprintf("%d RX chunks are leased still", n.meter.leased))
	}
	if err := q.Audit(); err != nil {
		lacking = append(lacking, err.Error())
	}
	var err error
	if n.stats, err = q.Stats(); err != nil {
		lacking = append(lacking, err.Error())
	}
	return lacking
}
