package testbed

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Forger sends frames of its own to one side of a [Middle], made of those that
// pass to that side, as fast as the kernel takes them.
type Forger struct {
	lane *lane
	out  int // packet socket
	sent atomic.Uint64
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
	l := m.lanes[from]
	out, err := unix.FcntlInt(uintptr(l.out), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	f := &Forger{lane: l, out: out, stop: make(chan struct{}), over: make(chan struct{})}
	l.sample(true)
	go f.run(rand.New(rand.NewPCG(seed, uint64(from))), change)
	return f, nil
}

// Sent is how many frames the kernel has taken.
func (f *Forger) Sent() uint64 { return f.sent.Load() }

// Close ends it, once, before the Middle is closed.
func (f *Forger) Close() {
	close(f.stop)
	<-f.over
	f.lane.sample(false)
	unix.Close(f.out)
}

func (f *Forger) run(rng *rand.Rand, change func(*rand.Rand, []byte) []byte) {
	defer close(f.over)
	// The flood stands for another machine's: it takes the CPU time that is left
	// here. The thread ends with the goroutine.
	runtime.LockOSThread()
	unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
	var frames [][]byte
	buf := make([]byte, 0, maxFrame)
	for {
		select {
		case <-f.stop:
			return
		default:
		}
		if frames = f.lane.sampled(frames[:0]); len(frames) == 0 {
			fds := []unix.PollFd{{Fd: -1}}
			unix.Poll(fds, 1) // nothing has passed yet
			continue
		}
		for range forgedAtOnce {
			buf = append(buf[:0], frames[rng.IntN(len(frames))]...)
			if b := change(rng, buf); b != nil && unix.Sendto(f.out, b, 0, nil) == nil {
				f.sent.Add(1)
			}
		}
	}
}

// sample begins, or ends, to keep frames that pass.
func (l *lane) sample(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = nil
	if on {
		l.kept = make([][]byte, 0, samples)
	}
}

// keep remembers a frame if a forger wants some. Locked.
func (l *lane) keep(frame []byte) {
	switch {
	case l.kept == nil:
	case len(l.kept) < samples:
		l.kept = append(l.kept, append([]byte(nil), frame...))
	default:
		old := &l.kept[l.n.Taken%samples]
		*old = append((*old)[:0], frame...)
	}
}

// sampled copies what was kept.
func (l *lane) sampled(into [][]byte) [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.kept {
		into = append(into, append([]byte(nil), b...))
	}
	return into
}
