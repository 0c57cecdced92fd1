package xdpnic

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
)

// asEcho is a process of TestSharingKills: it sends back each frame that it gets. Its argument is the queue's Handout; the
// socket and the memory are descriptors 3 and 4.
const asEcho = "echo"

// echoFrame is what a frame has behind its Ethernet header.
//
//	slot, 3 bytes of zeros, life of the slot's process, sequence number, pattern to the end
const echoFrame = 14 + 4 + 4 + 4

func echoMain() error {
	var h Handout
	if err := json.Unmarshal([]byte(os.Args[2]), &h); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(4, &st); err != nil {
		return err
	}
	mem, err := unix.Mmap(4, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	q, err := Adopt(3, h, mem)
	if err != nil {
		return err
	}
	frames := make([]Frame, 16)
	for {
		n := q.Receive(frames)
		if n == 0 {
			if err := q.Flush(); err != nil {
				return err
			}
			if err := q.Wait(time.Millisecond); err != nil {
				return err
			}
			continue
		}
		for _, f := range frames[:n] {
			addr, buf, ok := q.Alloc()
			for ; !ok; addr, buf, ok = q.Alloc() {
				runtime.Gosched()
				if err := q.Flush(); err != nil {
					return err
				}
			}
			copy(buf, f.Data)
			copy(buf, f.Data[6:12])
			copy(buf[6:], f.Data[:6])
			q.Send(addr, len(f.Data), false)
			q.Recycle(f.Addr)
		}
		q.Refill()
		if err := q.Flush(); err != nil {
			return err
		}
		if err := q.pool.firstWrong(); err != nil {
			return err
		}
	}
}

func (p *pool) firstWrong() error {
	if p.wrongs > 0 {
		return fmt.Errorf("%v", p.wrong)
	}
	return nil
}

// echoes is the peer of the processes: it sends to each, and checks what comes back.
type echoes struct {
	b     *end
	slots []echoSlot
}

type echoSlot struct {
	cmd        *exec.Cmd
	life       uint32
	sent, back uint32
	stopped    bool
	heard      time.Time
}

const echoWindow = 6

// round sends what the windows allow, and takes what has arrived.
func (x *echoes) round(t *testing.T, to *nstest.NS) {
	t.Helper()
	q := x.b.q
	for k := range x.slots {
		s := &x.slots[k]
		for s.cmd != nil && !s.stopped && s.sent-s.back < echoWindow {
			addr, buf, ok := q.Alloc()
			if !ok {
				break
			}
			n := echoFrame + int(s.sent*37%1400)
			header(buf, to, x.b.ns)
			binary.NativeEndian.PutUint32(buf[14:], uint32(k)) // the slot is the first byte
			buf[14], buf[15], buf[16], buf[17] = byte(k), 0, 0, 0
			binary.NativeEndian.PutUint32(buf[18:], s.life)
			binary.NativeEndian.PutUint32(buf[22:], s.sent)
			fillPattern(buf[echoFrame:n], byte(s.sent))
			q.Send(addr, n, false)
			s.sent++
		}
	}
	nstest.Must(t, q.Flush())
	var frames [64]Frame
	for _, f := range frames[:q.Receive(frames[:])] {
		d := f.Data
		s := &x.slots[d[14]]
		life, number := binary.NativeEndian.Uint32(d[18:]), binary.NativeEndian.Uint32(d[22:])
		if life == s.life {
			if number != s.back {
				t.Fatalf("process %d (life %d) sent number %d back, want %d of %d sent", d[14], life, number, s.back, s.sent)
			}
			wantPattern(t, append(d[:14:14], d[echoFrame:]...), 14+int(number*37%1400), byte(number))
			s.back++
			s.heard = time.Now()
		}
		q.Recycle(f.Addr)
	}
	q.Refill()
	for k := range x.slots {
		if s := &x.slots[k]; s.cmd != nil && !s.stopped && s.sent != s.back && time.Since(s.heard) > 10*time.Second {
			t.Fatalf("process %d (life %d) has sent %d frames back, of %d", k, s.life, s.back, s.sent)
		}
	}
	if q.pool.txOut > 0 || !q.Ready() {
		runtime.Gosched()
	}
}

// Eight processes share a queue under load. One after the other is killed, or stopped for a time, at any instruction. The
// others lose no frame and go on, and afterwards every chunk is in its place. VIA_KILLS sets the number of
// both, and VIA_STOP how long a process is stopped.
func TestSharingKills(t *testing.T) {
	const processes = 8
	na, nb := nstest.Pair(t, nstest.Options{})
	cfg := sharing
	cfg.Sharing.Guests = processes
	cfg.TxBudget = -1
	s := openShared(t, na, cfg)
	x := &echoes{b: openEnd(t, nb, pairOptions{generic: true}), slots: make([]echoSlot, 1+processes)}
	s.join(t, processes) // stays without traffic, and checks at the end
	defer func() {
		for _, e := range x.slots {
			if e.cmd != nil {
				_, _ = e.cmd.Process.Kill(), e.cmd.Wait()
			}
		}
	}()
	start := func(k int) {
		h, err := json.Marshal(s.handout(k))
		nstest.Must(t, err)
		cmd := exec.Command("/proc/self/exe", asEcho, string(h))
		cmd.Stderr = os.Stderr
		var files []*os.File
		for _, fd := range []int{s.fds[k][0], s.arena.FD()} {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			nstest.Must(t, err)
			f := os.NewFile(uintptr(dup), "")
			defer f.Close()
			files = append(files, f)
		}
		cmd.ExtraFiles = files
		nstest.Must(t, cmd.Start())
		x.slots[k] = echoSlot{cmd: cmd, life: x.slots[k].life + 1, heard: time.Now()}
	}
	for k := range processes {
		if k > 0 {
			s.join(t, k)
		}
		start(k)
	}
	stop := testsize.Duration(t, "VIA_STOP", 20*time.Millisecond, 20*time.Millisecond)
	random := rand.New(rand.NewPCG(testsize.Seed(t), 0))
	load := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); {
			x.round(t, na)
		}
	}
	answer := func(k int) { // a frame of the process has come
		before := x.slots[k].back
		for end := time.Now().Add(20 * time.Second); x.slots[k].back == before; x.round(t, na) {
			nstest.FatalIf(t, time.Now().After(end), "process %d answers nothing", k)
		}
	}
	for k := range processes {
		answer(k)
	}
	for kill := range testsize.Number(t, "VIA_KILLS", 8, 40) {
		load(time.Duration(random.IntN(5000)) * time.Microsecond)
		k := random.IntN(processes)
		e := &x.slots[k]
		if kill%4 == 3 { // a process that is stopped is in no other's way
			unix.Kill(e.cmd.Process.Pid, unix.SIGSTOP)
			e.stopped = true
			load(stop)
			for o := range processes {
				if o != k {
					answer(o)
				}
			}
			unix.Kill(e.cmd.Process.Pid, unix.SIGCONT)
			e.stopped, e.heard = false, time.Now()
			answer(k)
			continue
		}
		e.cmd.Process.Kill()
		e.cmd.Wait()
		e.cmd = nil
		e.life++ // what is under way is nobody's
		load(time.Millisecond)
		s.reclaim(t, k)
		s.join(t, k)
		start(k)
		answer(k)
	}
	load(100 * time.Millisecond)
	for k := range processes {
		x.slots[k].cmd.Process.Kill()
		x.slots[k].cmd.Wait()
		x.slots[k].cmd = nil
		s.reclaim(t, k)
	}
	stay := s.adopt(t, processes)
	load(10 * time.Millisecond) // what is under way to the peer
	inPlace(t, stay.q)
	audit(t, stay.q, x.b.q)
	stay.pass(t, x.b, 64, 1)
}
