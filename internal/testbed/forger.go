package testbed

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
)

// Forger sends frames of its own to one side of a [Middle], made of those that
// pass to that side, as fast as the kernel takes them.
type Forger struct {
	way  *way
	outs [2]int // packet sockets: to the side, and to the loopback interface
	sent atomic.Uint64

	spare atomic.Bool
	nice  atomic.Int32

	theirs int32 // niceness of this process

	stop chan struct{}
	over chan struct{}
}

const (
	samples      = 64  // frames that a forger has to make others of
	forgedAtOnce = 512 // frames made of the same samples
)

// Forge begins to send frames to the side other than from. Each is what change
// makes of a frame that has passed, in place or in another slice; nil: none. change
// is called by one goroutine, and what it does follows from rng alone.
func (m *Middle) Forge(from int, seed uint64, change func(rng *rand.Rand, frame []byte) []byte) (*Forger, error) {
	w := m.ways[from]
	f := &Forger{way: w, stop: make(chan struct{}), over: make(chan struct{})}
	f.nice.Store(idle)
	prio, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return nil, fmt.Errorf("priority: %w", err)
	}
	f.theirs = int32(20 - prio) // as the kernel tells it
	if f.outs[0], err = unix.FcntlInt(uintptr(w.out), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if f.outs[1], err = m.loopback(); err != nil {
		unix.Close(f.outs[0])
		return nil, err
	}
	w.sample(true)
	thread.Go(func() { f.run(rand.New(rand.NewPCG(seed, uint64(from))), change) })
	return f, nil
}

// idle is the niceness of a flood that stands for another machine's: it takes the CPU time that is
// left here.
const idle = 19

// Compete has the forger run beside all others at their priority, or, with false, as it begins, when
// nobody else wants the CPU.
func (f *Forger) Compete(on bool) {
	if on {
		f.nice.Store(f.theirs)
	} else {
		f.nice.Store(idle)
	}
}

// Spare has it send its frames to the middle's own loopback interface, whose kernel drops them as another
// host's, or, with false, to the side again. The forger does the same work for them: by as much as others
// then do better, the frames cost them something.
func (f *Forger) Spare(on bool) { f.spare.Store(on) }

// loopback is a packet socket to the middle's loopback interface.
func (m *Middle) loopback() (fd int, err error) {
	err = thread.In(int(m.ns), func() error {
		l, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("loopback interface of the middle: %w", err)
		}
		fd, err = packetSocket(l.Attrs().Index, 0)
		return err
	})
	return fd, err
}

// Sent is how many frames the kernel has taken for the side.
func (f *Forger) Sent() uint64 { return f.sent.Load() }

// Close ends it, once, before the Middle is closed.
func (f *Forger) Close() {
	close(f.stop)
	<-f.over
	f.way.sample(false)
	for _, fd := range f.outs {
		unix.Close(fd)
	}
}

func (f *Forger) run(rng *rand.Rand, change func(*rand.Rand, []byte) []byte) {
	defer close(f.over)
	nice := f.theirs
	var frames [][]byte
	buf := make([]byte, 0, maxFrame)
	for {
		select {
		case <-f.stop:
			return
		default:
		}
		if frames = f.way.sampled(frames[:0]); len(frames) == 0 {
			fds := []unix.PollFd{{Fd: -1}}
			unix.Poll(fds, 1) // nothing has passed yet
			continue
		}
		if want := f.nice.Load(); want != nice {
			nice = want
			unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), int(nice)) // as it is, if it may not
		}
		out, counted := f.outs[0], uint64(1)
		if f.spare.Load() {
			out, counted = f.outs[1], 0
		}
		for range forgedAtOnce {
			buf = append(buf[:0], frames[rng.IntN(len(frames))]...)
			if b := change(rng, buf); b != nil && unix.Sendto(out, b, 0, nil) == nil {
				f.sent.Add(counted)
			}
		}
	}
}

// sample begins, or ends, to keep frames that pass.
func (w *way) sample(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = nil
	if on {
		w.kept = make([][]byte, 0, samples)
	}
}

// keep remembers a frame if a forger wants some. Locked.
func (w *way) keep(frame []byte) {
	switch {
	case w.kept == nil:
	case len(w.kept) < samples:
		w.kept = append(w.kept, append([]byte(nil), frame...))
	default:
		old := &w.kept[w.n.Taken%samples]
		*old = append((*old)[:0], frame...)
	}
}

// sampled copies what was kept.
func (w *way) sampled(into [][]byte) [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.kept {
		into = append(into, append([]byte(nil), b...))
	}
	return into
}
