//go:build asavie

package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/asavie/xdp"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/xdpnic"
)

// asavieTransports are built with the tag asavie only: the module's repository is
// archived, and the rest must not depend on whether a proxy still has it.
var asavieTransports = []transport{
	{name: "asavie-xdp", xdp: true,
		summary: "xdp.Socket of asavie/xdp, Poll(0)", open: openFramedAsavie},
	{name: "asavie-xdp-wait", xdp: true, sleeps: true,
		summary: "the same, Poll with a time-out", open: openFramedAsavie},
}

func openFramedAsavie(o opening) endpoint {
	a := &asavie{sleeps: o.sleeps}
	a.rawNIC = openRawNIC(o, a)
	return o.framed(a)
}

// asavie is an xdp.Socket of github.com/asavie/xdp, driven as its documentation shows:
// Poll before Receive, Poll(0) to check and a longer Poll to sleep. It is a baseline
// for our own queue.
//
// The socket hands out chunks from the lowest address on; receiving has the upper half
// for itself.
//
//	0                 ringChunks          2*ringChunks
//	| GetDescs: sending | Fill: receiving |
type asavie struct {
	*rawNIC
	xsk    *xdp.Socket
	sleeps bool
	chunk  int

	descs []xdp.Desc // chunks for sending; used of them are queued
	used  int

	ready int        // frames received, as the last Poll reported
	lease []xdp.Desc // taken off the ring
	at    int
}

func (a *asavie) open(ifi *net.Interface, p Params, _ xdpnic.Mode) int {
	a.chunk = fail.Must(xdpnic.Config{Ifindex: ifi.Index, QueueID: p.Queue}.WithDefaults()).ChunkSize
	options := &xdp.SocketOptions{
		NumFrames: 2 * ringChunks, FrameSize: a.chunk,
		FillRingNumDescs: ringChunks, CompletionRingNumDescs: ringChunks,
		RxRingNumDescs: ringChunks, TxRingNumDescs: ringChunks,
	}
	for deadline := time.Now().Add(xdpnic.DefaultBusyTimeout); ; time.Sleep(2 * time.Millisecond) {
		xsk, err := xdp.NewSocket(ifi.Index, p.Queue, options)
		if err == nil {
			a.xsk = xsk
			break
		}
		// The library gives the errno as text only.
		if !strings.Contains(err.Error(), unix.EBUSY.Error()) || time.Now().After(deadline) {
			fail.If(err)
		}
	}
	// As xdpnic does: the kernel then says EAGAIN before veth's queue overflows.
	fail.Wrap(unix.SetsockoptInt(a.xsk.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, xdpnic.DefaultSendBuffer/2), "SO_SNDBUF")
	fill := make([]xdp.Desc, ringChunks)
	for i := range fill {
		fill[i].Addr = uint64((ringChunks + i) * a.chunk)
	}
	a.xsk.Fill(fill)
	return a.xsk.FD()
}

func (a *asavie) shut() error {
	if a.xsk == nil {
		return nil
	}
	rings, err := mappingsOf(a.xsk.FD())
	err = errors.Join(err, a.xsk.Close())
	a.xsk = nil
	// The library leaves the rings mapped, and with them the socket bound.
	for _, m := range rings {
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, m.start, m.end-m.start, 0); errno != 0 {
			err = errors.Join(err, fmt.Errorf("munmap: %w", errno))
		}
	}
	return err
}

// mapping is a range of addresses of this process.
type mapping struct{ start, end uintptr }

// mappingsOf lists the mappings of a socket's rings, proc_pid_maps(5).
func mappingsOf(fd int) ([]mapping, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var found []mapping
	for line := range strings.Lines(string(text)) {
		// start-end perms offset dev inode path
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[4] != strconv.FormatUint(st.Ino, 10) || !strings.Contains(line, "socket:") {
			continue
		}
		var m mapping
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end); err != nil {
			return nil, fmt.Errorf("/proc/self/maps: %q: %w", line, err)
		}
		found = append(found, m)
	}
	return found, nil
}

func (a *asavie) hello() Hello {
	return a.describe(a.chunk-xdpnic.PacketHeadroom, "4k")
}

func (a *asavie) next() []byte {
	if a.used == len(a.descs) {
		if a.used > 0 {
			return nil // flush first: only Transmit makes the socket count them as taken
		}
		a.descs = a.xsk.GetDescs(frameBatch)
		for i, d := range a.descs {
			if d.Addr >= uint64(ringChunks*a.chunk) {
				a.descs = a.descs[:i] // a received frame that is in our hands
				break
			}
		}
		if len(a.descs) == 0 {
			return nil
		}
	}
	d := &a.descs[a.used]
	d.Len = uint32(a.chunk)
	return a.xsk.GetFrame(*d)[a.skip:]
}

func (a *asavie) commit(n int) {
	d := &a.descs[a.used]
	a.header.PutHead(a.xsk.GetFrame(*d), n)
	d.Len = uint32(a.skip + n)
	a.used++
}

// transmit hands frames over, takes completions back, and returns how many were taken. The library ends the program
// when the kernel refuses to send; here that is an error.
func (a *asavie) transmit(frames []xdp.Desc) int {
	defer func() {
		if r := recover(); r != nil {
			fail.With("xdp.Socket: %v", r)
		}
	}()
	n := a.xsk.Transmit(frames)
	a.xsk.Complete(a.xsk.NumCompleted())
	return n
}

// flush sends what is queued.
func (a *asavie) flush() {
	queued := a.descs[:a.used]
	a.descs, a.used = nil, 0
	for {
		queued = queued[a.transmit(queued):]
		if len(queued) == 0 && a.xsk.NumFreeTxSlots() == ringChunks {
			a.watch.progress()
			return
		}
		fail.If(a.watch.idle())
	}
}

func (a *asavie) wait() {
	a.pollFor(maxSleep)
}

// pollFor notes how many frames there are.
func (a *asavie) pollFor(d time.Duration) {
	var err error
	a.ready, _, err = a.xsk.Poll(int(d / time.Millisecond))
	fail.If(err)
}

func (a *asavie) poll() []byte {
	if a.at == len(a.lease) {
		a.refill()
		if a.ready == 0 {
			if a.sleeps {
				a.ready = a.xsk.NumReceived() // no system call before the one that sleeps
			} else {
				a.pollFor(0)
			}
			if a.ready == 0 {
				return nil
			}
		}
		a.lease, a.ready = a.xsk.Receive(min(a.ready, ringLease)), 0
	}
	frame := a.xsk.GetFrame(a.lease[a.at])
	a.at++
	return udpContent(frame, a.skip)
}

// refill gives received chunks back to the kernel.
func (a *asavie) refill() {
	if len(a.lease) == 0 {
		return
	}
	for i := range a.lease {
		// Received addresses point past the kernel's headroom.
		a.lease[i].Addr -= a.lease[i].Addr % uint64(a.chunk)
	}
	a.xsk.Fill(a.lease)
	a.lease, a.at = nil, 0
}
