package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// steps counts the steps of a program's way through a dialogue, and kills it at one of
// them. Methods may be called concurrently, and on nil, which does nothing.
//
// A step is a moment between two events that a peer, the kernel or the program itself can
// distinguish: the calls of the engine to queue and agent, and those of the program to the
// engine.
type steps struct {
	die string // at this one

	mu    sync.Mutex
	stage string
	seen  map[string]int
	tell  io.Writer
}

// begin says that a stage of the dialogue begins.
func (s *steps) begin(stage string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage = stage
}

// at is one step.
func (s *steps) at(name string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name = s.stage + ": " + name
	s.seen[name]++
	if n := s.seen[name]; n > 1 {
		name = fmt.Sprintf("%s, %d", name, n)
	}
	if name == s.die {
		unix.Kill(unix.Getpid(), unix.SIGKILL)
		nstest.Forever()
	}
	if s.die == "" {
		fmt.Fprintf(s.tell, "%s%s\n", lineStep, name)
	}
}

// around is two steps and what lies between them.
func (s *steps) around(name string, f func() error) error {
	s.at(name)
	err := f()
	s.at(name + " has returned")
	return err
}

// stepLeased is the moment when the engine has leased frames and has not read them.
const stepLeased = "frames are leased"

// stepPort is the queue, with the steps of frames.
type stepPort struct {
	*xdpnic.Queue
	steps    *steps
	recycled bool
}

func (p *stepPort) Send(addr uint64, n int, retain bool) bool {
	p.steps.at("frame is built")
	defer p.steps.at("frame is on the ring")
	return p.Queue.Send(addr, n, retain)
}

func (p *stepPort) SendSegs(segs []xdpnic.Desc, retain bool) bool {
	p.steps.at("frame is built")
	defer p.steps.at("frame is on the ring")
	return p.Queue.SendSegs(segs, retain)
}

func (p *stepPort) Flush() error {
	if p.Pending() == 0 {
		return p.Queue.Flush()
	}
	return p.steps.around("doorbell", p.Queue.Flush)
}

func (p *stepPort) Release(addr uint64) {
	p.Queue.Release(addr)
	p.steps.at("frame is acknowledged")
}

func (p *stepPort) Receive(frames []xdpnic.Frame) int {
	n := p.Queue.Receive(frames)
	if n > 0 {
		p.steps.at(stepLeased)
	}
	return n
}

func (p *stepPort) Recycle(addr uint64) {
	p.steps.at("frame is placed")
	p.Queue.Recycle(addr)
	p.recycled = true
	p.steps.at("frame is recycled")
}

func (p *stepPort) Refill() {
	p.Queue.Refill()
	if p.recycled {
		p.recycled = false
		p.steps.at("fill ring has it")
	}
}

// stepAgent is the Kernel Agent, with the steps of connections.
type stepAgent struct {
	*device.Local
	steps *steps
}

func (a stepAgent) Enter(num uint32, key uint64, peer netip.Addr) error {
	return a.steps.around("VI enters the table", func() error { return a.Local.Enter(num, key, peer) })
}

func (a stepAgent) Remove(num uint32) error {
	return a.steps.around("VI leaves the table", func() error { return a.Local.Remove(num) })
}

func (a stepAgent) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (answer *kagent.Answer, err error) {
	err = a.steps.around("request", func() error {
		answer, err = a.Local.Request(ctx, local, remote, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	answer.Confirmation = stepAnswer{answer.Confirmation, a.steps}
	return answer, nil
}

func (a stepAgent) Listen(local kagent.Address) (kagent.Listener, error) {
	l, err := a.Local.Listen(local)
	if err != nil {
		return nil, err
	}
	return stepListener{l, a.steps}, nil
}

func (a stepAgent) Close() error { return a.steps.around("agent closes", a.Local.Close) }

type stepAnswer struct {
	kagent.Confirmation
	steps *steps
}

func (a stepAnswer) ConfirmWith(proof []byte) error {
	return a.steps.around("confirm", func() error { return a.Confirmation.ConfirmWith(proof) })
}

type stepListener struct {
	kagent.Listener
	steps *steps
}

func (l stepListener) Wait(ctx context.Context) (kagent.Incoming, error) {
	in, err := l.Listener.Wait(ctx)
	if err != nil {
		return nil, err
	}
	l.steps.at("request has come")
	return stepIncoming{in, l.steps}, nil
}

type stepIncoming struct {
	kagent.Incoming
	steps *steps
}

func (in stepIncoming) Accept(ctx context.Context, o kagent.Offer) error {
	return in.steps.around("accept", func() error { return in.Incoming.Accept(ctx, o) })
}

// victim says what a program that is to be killed does.
type victim struct {
	Sends   bool // it asks for the connection and sends; or it waits and receives
	Level   vipl.ReliabilityLevel
	Peer    netip.Addr
	Session uint64 // another one for each victim
	Die     string // at this step; empty: it reports each
}

func (v *victim) address() vipl.NetAddress {
	return vipl.NetAddress{Discriminator: fmt.Appendf(nil, "steps/%d", v.Session)}
}

// What a victim prints, one thing a line.
const (
	lineProgram = "program " // with the number of its XDP program
	lineWaits   = "waits"    // for a connection, from now on
	lineStep    = "step "    // with its name
)

// asVictim makes the test binary a victim; JSON after it describes its life.
const asVictim = "torture-victim"

// live is the victim's life. It ends early when its parent does.
func live() (err error) {
	defer fail.Catch(&err)
	var v victim
	fail.If(json.Unmarshal([]byte(os.Args[2]), &v))
	nstest.EndWithTest()
	s := &steps{die: v.Die, seen: make(map[string]int), tell: os.Stdout}
	local := fail.Must(device.Open(kagent.Config{
		Interface: Interface, Queue: kagent.AnyQueue, RxChunks: victimChunks, TxChunks: victimChunks, ArenaBytes: victimArena,
		Hugepages: hugepages.Avoid, MaxVIs: 2,
	}))
	a, ok, err := bpf.AttachedTo(local.Info().Index)
	if err != nil || !ok {
		return fmt.Errorf("no program is attached: %w", err)
	}
	fmt.Printf("%s%d\n", lineProgram, a.ID)
	s.begin(stageConnect)
	s.at("interface is open")
	nic := fail.Must(provider.OpenNIC[*vipl.NIC](provider.Provider{
		Port: &stepPort{Queue: local.Queue(), steps: s}, Agent: stepAgent{local, s}, Arena: local.Arena(), Info: local.Info(),
	}, vipl.WithSilence(unhurried)))
	nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	d := newDialogue(nic, v.Level)
	d.begin(v.Session)
	d.steps = s
	v.converse(d)
	d.end()
	s.begin(stageClose)
	fail.If(d.vi.Destroy())
	s.at("VI is destroyed")
	fail.If(nic.Close())
	s.at("all is closed")
	return nil
}

const (
	victimChunks = 64
	victimArena  = 1 << 20
)

// converse connects and has the dialogue, up to where the sender disconnects.
func (v *victim) converse(d *dialogue) {
	kinds, at := kindsOf(v.Level), v.address()
	if v.Sends {
		at.Host = v.Peer
		_ = fail.Must(d.vi.ConnectRequest(vipl.NetAddress{}, at, waitLimit))
		d.steps.at("connect has returned")
		d.send(kinds)
		return
	}
	l := fail.Must(d.nic.Listen(at))
	fmt.Println(lineWaits)
	fail.If(fail.Must(l.Wait(context.Background())).Accept(d.vi))
	d.steps.at("connect has returned")
	d.receive(kinds)
	// The sender disconnects.
	if err := fail.Try(func() { d.hear() }); err != errEnded {
		fail.With("after the last message: %w", err)
	}
	d.steps.at("the end is known")
}
