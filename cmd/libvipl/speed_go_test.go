package main

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"time"

	"viaxdp/vipl"
)

// goPingPong or goWindow as the first argument makes the test binary a program like
// the one of testdata.
const goPingPong, goWindow = "go-pingpong", "go-window"

var goPrograms = map[string]func(args []string) error{goPingPong: runGoPingPong, goWindow: runGoWindow}

// goMost is how many bytes a message may have.
const goMost = 32768

// goEnd is one side of such a program.
type goEnd struct {
	server      bool
	count, size int
	nic         *vipl.NIC
	vi          *vipl.VI
	mem         *vipl.Region
	buf         []byte
	base, descs int // where descriptors begin, and how many they are; buffers follow
	peer        vipl.NetAddress
}

// openGo allocates memory for that many descriptors and buffers. args: server DEVICE COUNT SIZE
// or client DEVICE ADDRESS COUNT SIZE.
func openGo(args []string, descs, buffers int) (*goEnd, error) {
	e := &goEnd{server: args[0] == "server", descs: descs, peer: vipl.NetAddress{Discriminator: []byte("go")}}
	device, rest := args[1], args[2:]
	if !e.server {
		e.peer.Host, rest = netip.MustParseAddr(rest[0]), rest[1:]
	}
	e.count, _ = strconv.Atoi(rest[0])
	e.size, _ = strconv.Atoi(rest[1])
	runtime.LockOSThread()
	runtime.GOMAXPROCS(8) // as the library does
	var err error
	if e.nic, err = vipl.OpenNIC(device, vipl.WithSilence(silence)); err != nil { // as newBed sets it
		return nil, err
	}
	tag, err := e.nic.CreatePtag()
	if err != nil {
		return nil, err
	}
	e.buf = make([]byte, descs*64+buffers*goMost+64)
	if e.mem, err = e.nic.RegisterMem(e.buf, vipl.MemAttributes{Ptag: tag}); err != nil {
		return nil, err
	}
	e.base = int(-e.mem.Addr() & 63)
	e.vi, err = e.nic.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	return e, err
}

// at is where a buffer begins.
func (e *goEnd) at(i int) int { return e.base + 64*e.descs + i*goMost }

func (e *goEnd) desc(i int) *vipl.Descriptor {
	d, err := e.mem.Descriptor(e.base+64*i, 1)
	if err != nil {
		panic(err)
	}
	return d
}

// post sends, or receives into, n bytes of a buffer.
func (e *goEnd) post(post func(*vipl.Descriptor, vipl.MemHandle) error, d *vipl.Descriptor, buffer, n int) {
	d.SetSegments(e.mem.Segment(e.at(buffer), n))
	if err := post(d, e.mem.Handle()); err != nil {
		panic(err)
	}
}

func (e *goEnd) connect() error {
	if e.server {
		request, err := e.nic.ConnectWait(e.peer, 10*time.Second)
		if err == nil {
			err = request.Accept(e.vi)
		}
		return err
	}
	var err error = vipl.ErrNoMatch
	for errors.Is(err, vipl.ErrNoMatch) || errors.Is(err, vipl.ErrTimeout) {
		_, err = e.vi.ConnectRequest(vipl.NetAddress{}, e.peer, time.Second)
	}
	return err
}

// runGoPingPong is testdata/pingpong.c in Go, step by step.
func runGoPingPong(args []string) error {
	const ahead = 4
	e, err := openGo(args, ahead+1, ahead+1)
	if err != nil {
		return err
	}
	defer e.nic.Close()
	out := e.desc(0)
	var in [ahead]*vipl.Descriptor
	postRecv := func(i int) { e.post(e.vi.PostRecv, in[i%ahead], 1+i%ahead, goMost) }
	take := func(done func() (*vipl.Descriptor, error)) {
		for {
			if d, err := done(); err == nil && d != nil {
				return
			} else if err != vipl.ErrNotDone {
				panic(err)
			}
		}
	}
	for i := range in {
		in[i] = e.desc(i + 1)
		postRecv(i)
	}
	if err := e.connect(); err != nil {
		return err
	}
	trips := make([]time.Duration, 0, e.count)
	warm := e.count/10 + 1
	start := time.Now()
	for i := range warm + e.count {
		began := time.Now()
		if i == warm {
			start = began
		}
		for k := range min(e.size, 64) {
			e.buf[e.at(0)+k] = byte(i & 127)
		}
		if !e.server {
			e.post(e.vi.PostSend, out, 0, e.size)
			if i > 0 {
				postRecv(i - 1 + ahead)
			}
		}
		take(e.vi.RecvDone)
		if int(in[i%ahead].Length) != e.size || e.buf[e.at(1+i%ahead)] != byte(i&127) {
			return errors.New("another message came")
		}
		if e.server {
			e.post(e.vi.PostSend, out, 0, e.size)
			postRecv(i + ahead)
		}
		take(e.vi.SendDone)
		if i >= warm {
			trips = append(trips, time.Since(began))
		}
	}
	took := time.Since(start)
	slices.Sort(trips)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	fmt.Printf("%10d %14.2f %12.2f\n", e.size, us(took)/float64(e.count)/2, us(trips[e.count/2])/2)
	if !e.server {
		return e.vi.Disconnect()
	}
	return nil
}

// runGoWindow is testdata/window.c in Go, step by step.
func runGoWindow(args []string) error {
	const window = 64
	e, err := openGo(args, 2*window, window)
	if err != nil {
		return err
	}
	defer e.nic.Close()
	var data, other [window]*vipl.Descriptor // of data, of credits
	empty := func(post func(*vipl.Descriptor, vipl.MemHandle) error, d *vipl.Descriptor, credits int) {
		d.SetSegments()
		d.Control = 0
		if credits > 0 {
			d.SetImmediate(uint32(credits))
		}
		if err := post(d, e.mem.Handle()); err != nil {
			panic(err)
		}
	}
	for i := range window {
		data[i], other[i] = e.desc(i), e.desc(window+i)
		if e.server {
			e.post(e.vi.PostRecv, data[i], i, goMost)
		} else {
			empty(e.vi.PostRecv, other[i], 0)
		}
	}
	if err := e.connect(); err != nil {
		return err
	}
	start := time.Now()
	credits, sent, done, taken, owed, said := window, 0, 0, 0, 0, 0
	for e.server && taken < e.count || !e.server && (sent < e.count || done < sent || credits < window) {
		if !e.server && credits > 0 && sent < e.count && sent-done < window {
			e.post(e.vi.PostSend, data[sent%window], sent%window, e.size)
			credits--
			sent++
		}
		if _, err := e.vi.SendDone(); err == nil {
			done++
		} else if err != vipl.ErrNotDone && err != vipl.ErrDescriptor {
			return err
		}
		d, err := e.vi.RecvDone()
		if err == vipl.ErrNotDone {
			continue
		} else if err != nil {
			return err
		}
		if !e.server {
			credits += int(d.ImmediateData)
			empty(e.vi.PostRecv, d, 0)
			continue
		}
		if d != data[taken%window] || int(d.Length) != e.size {
			return errors.New("another message came")
		}
		e.post(e.vi.PostRecv, d, taken%window, goMost)
		taken++
		owed++
		if owed == window/4 || taken == e.count {
			empty(e.vi.PostSend, other[said%window], owed)
			said++
			owed = 0
		}
	}
	took := time.Since(start).Seconds()
	fmt.Printf("%10d %12.1f %12.0f\n", e.size, float64(e.size*e.count)/took/1e6, float64(e.count)/took)
	if !e.server {
		return e.vi.Disconnect()
	}
	for q, err := e.vi.Query(); err == nil && q.State == vipl.Connected; q, err = e.vi.Query() {
	}
	return nil
}
