package vianet_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// ending is how a connection ends.
type ending int

const (
	whole   ending = iota // both say all, end their streams and read the other's to its end
	answers               // the same, but the server sends only after the client's stream has ended
	hurried               // as whole, with deadlines that keep passing
	leaves                // one closes while both are at it
	bothGo                // both do
	breaks                // one closes so that nothing is delivered
	silent                // the client closes at once
	givesUp               // or its Dial ends early
	endings
)

// plan describes the life of a connection. Side 0 is the client, side 1 the server.
type plan struct {
	number int
	end    ending
	goes   int    // the side that closes while both transfer
	bytes  [2]int // that each has to say
	after  [2]int // bytes read each closes, if it does
	ends   [2]*end
}

func newPlan(number int) *plan {
	r := rand.New(rand.NewPCG(uint64(number), 1))
	p := &plan{number: number, end: ending(number) % endings, goes: r.IntN(2)}
	for i := range 2 {
		p.bytes[i] = r.IntN(1 << (4 + r.IntN(15)))
		p.after[1-i] = r.IntN(p.bytes[i] + 1)
	}
	return p
}

func (p *plan) closes(who int) bool {
	return p.end == bothGo || (p.end == leaves || p.end == breaks) && p.goes == who
}

func (p *plan) String() string {
	return fmt.Sprintf("connection %d, ending %d by %d, %v bytes, until %v", p.number, p.end, p.goes, p.bytes, p.after)
}

// speech is the data that side who sends.
func (p *plan) speech(who int) []byte {
	from := (2*p.number + who) * 7919 % (len(speeches) / 2)
	return speeches[from : from+p.bytes[who]]
}

var speeches = randomBytes(1<<20, 77)

// end is what one side of a connection has done and seen.
type end struct {
	wrote, got        int
	other             bool  // bytes came that the peer has not said
	readErr, writeErr error // io.EOF: the peer's stream has ended
	slow              bool  // a call that was to end has lasted so long that the peer may have been given up
}

// attend runs one side of a connection until it is closed.
func (p *plan) attend(c *vianet.Conn, who int) *end {
	e := &end{}
	limit := time.Now().Add(testTimeout)
	c.SetDeadline(limit)
	shut := sync.OnceFunc(func() {
		if p.end == breaks && p.goes == who {
			c.SetLinger(0)
		}
		c.Close()
	})
	defer shut()
	heard := make(chan struct{})
	var wait sync.WaitGroup
	writeSlow := false
	wait.Go(func() {
		if p.end == answers && who == 1 {
			<-heard
		}
		e.wrote, writeSlow, e.writeErr = p.say(c, who, limit)
	})
	e.readErr = p.listen(c, who, limit, e)
	close(heard)
	if p.closes(who) {
		shut()
	}
	wait.Wait()
	e.slow = e.slow || writeSlow
	return e
}

// patient is the deadline of the next hurried call, after one that moved n bytes. It grows while nothing moves, since
// a busy host may leave no time for either side.
func patient(callTime time.Duration, n int) time.Duration {
	if n > 0 {
		return time.Millisecond
	}
	return min(2*callTime, testTimeout)
}

// say writes what there is to say, in pieces.
func (p *plan) say(c *vianet.Conn, who int, limit time.Time) (wrote int, slow bool, err error) {
	r := rand.New(rand.NewPCG(uint64(p.number), uint64(2+who)))
	callTime := time.Millisecond
	for speech := p.speech(who); wrote < len(speech); {
		n := min(1+r.IntN(1<<r.IntN(18)), len(speech)-wrote)
		if p.end == hurried {
			c.SetWriteDeadline(time.Now().Add(time.Duration(r.Int64N(int64(callTime)))))
		}
		start := time.Now()
		k, err := c.Write(speech[wrote : wrote+n])
		wrote += k
		callTime = patient(callTime, k)
		slow = slow || time.Since(start) > vianet.ReleaseTime
		if errors.Is(err, os.ErrDeadlineExceeded) && p.end == hurried && time.Now().Before(limit) {
			continue
		}
		if err != nil {
			return wrote, slow, err
		}
	}
	if p.end <= hurried {
		err = c.CloseWrite()
	}
	return wrote, slow, err
}

// listen reads what the peer says, to its end or until it is time to close.
func (p *plan) listen(c *vianet.Conn, who int, limit time.Time, e *end) error {
	r := rand.New(rand.NewPCG(uint64(p.number), uint64(4+who)))
	want := p.speech(1 - who)
	buf := make([]byte, 100_000)
	callTime := time.Millisecond
	for !p.closes(who) || e.got < p.after[who] {
		if p.end == hurried {
			c.SetReadDeadline(time.Now().Add(time.Duration(r.Int64N(int64(callTime)))))
		}
		start := time.Now()
		n, err := c.Read(buf[:1+r.IntN(1<<r.IntN(17))%len(buf)])
		e.slow = e.slow || time.Since(start) > vianet.ReleaseTime
		if n > len(want)-e.got || !bytes.Equal(buf[:n], want[e.got:e.got+n]) {
			e.other = true
		}
		e.got += n
		callTime = patient(callTime, n)
		if errors.Is(err, os.ErrDeadlineExceeded) && p.end == hurried && time.Now().Before(limit) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// judge returns what is wrong with what the two sides have seen; "" means nothing.
func (p *plan) judge() (why string) {
	wrong := func(format string, args ...any) { why += fmt.Sprintf(format, args...) + "\n" }
	if p.ends[0] == nil || p.ends[1] == nil {
		if p.end != silent && p.end != givesUp && p.end != breaks {
			wrong("the two sides did not meet: %v %v", p.ends[0], p.ends[1])
		}
		return why
	}
	slow := p.ends[0].slow || p.ends[1].slow
	for who, e := range p.ends {
		peer := p.ends[1-who]
		switch {
		case e.other:
			wrong("side %d has read what was not written", who)
		case e.readErr == io.EOF && e.got != peer.wrote:
			wrong("side %d has read %d bytes and the end, the other has written %d", who, e.got, peer.wrote)
		case e.readErr == io.EOF && p.end == breaks && p.goes != who:
			wrong("side %d reads an end from one that broke the connection", who)
		case errors.Is(e.readErr, os.ErrDeadlineExceeded) || errors.Is(e.writeErr, os.ErrDeadlineExceeded):
			wrong("side %d waits for ever: %v, %v", who, e.readErr, e.writeErr)
		case slow:
		case p.end <= hurried && (e.readErr != io.EOF || e.writeErr != nil || e.got != p.bytes[1-who]):
			wrong("side %d of a whole one: %d bytes of %d, %v, %v", who, e.got, p.bytes[1-who], e.readErr, e.writeErr)
		case p.end == leaves && p.goes != who && e.readErr != io.EOF:
			wrong("side %d reads from one that left: %v", who, e.readErr)
		case p.end == breaks && p.goes != who && !errors.Is(e.readErr, syscall.ECONNRESET):
			wrong("side %d reads from one that broke the connection: %v", who, e.readErr)
		}
	}
	return why
}

// dial is the client.
func (p *plan) dial(h *hosts, to net.Addr) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	if p.end == givesUp {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(p.number%23)*100*time.Microsecond)
	}
	defer cancel()
	conn, err := h.a.DialContext(ctx, "via", to.String())
	if err != nil {
		if p.end == givesUp && errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		return err
	}
	c := conn.(*vianet.Conn)
	if p.end == silent || p.end == givesUp {
		return c.Close()
	}
	if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(p.number))); err != nil {
		return errors.Join(err, c.Close())
	}
	p.ends[0] = p.attend(c, 0)
	return nil
}

// serve is the server of the plans.
func serve(t *testing.T, l *vianet.Listener, plans map[uint32]*plan, conns *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			nstest.ErrorIf(t, !errors.Is(err, net.ErrClosed), "%v", err)
			return
		}
		c := conn.(*vianet.Conn)
		conns.Go(func() {
			c.SetDeadline(time.Now().Add(testTimeout))
			head := make([]byte, 4)
			if _, err := io.ReadFull(c, head); err != nil {
				nstest.ErrorIf(t, err != io.EOF && !errors.Is(err, syscall.ECONNRESET), "a connection that says nothing: %v", err)
				c.Close()
				return
			}
			p := plans[binary.BigEndian.Uint32(head)]
			if p == nil {
				t.Errorf("the client begins with %x", head)
				c.Close()
				return
			}
			p.ends[1] = p.attend(c, 1)
		})
	}
}

// Thousands of connections come and go, and end in all ways. The bytes read are the bytes written, up to an orderly
// end. No counter decreases meanwhile. When the connections are gone, nothing is left of them. VIA_CONNECTIONS=10000
// takes minutes.
func TestComeAndGo(t *testing.T) {
	config := func(name string, o vianet.Options, c memorynic.Config, prepare func(h *hosts)) {
		t.Run(name, func(t *testing.T) {
			o.Linger = testTimeout
			h := inMemoryBy(t, o, c)
			prepare(h)
			h.bearBreaks()
			for next, left := 0, testsize.Number(t, "VIA_CONNECTIONS", 60, 180); left > 0 && !t.Failed(); {
				n := min(left, 300)
				h.comeAndGo(t, next, n)
				next, left = next+n, left-n
			}
		})
	}
	for _, l := range configurations {
		config(l.name, l.options, l.nics, func(*hosts) {})
	}
	config("one stack", vianet.Options{}, memorynic.Config{}, func(h *hosts) { h.b, h.nicB = h.a, h.nicA })
	config("loss", vianet.Options{Registered: 100_000}, memorynic.Config{}, func(h *hosts) { // most must go
		h.wire.SetFaults(lossy)
	})
}

// comeAndGo makes n connections, several at a time, and waits until they are gone.
func (h *hosts) comeAndGo(t *testing.T, first, n int) {
	t.Helper()
	const together = 12
	plans := make(map[uint32]*plan)
	for i := first; i < first+n; i++ {
		plans[uint32(i)] = newPlan(i)
	}
	defer neverLess(t, h.a, h.b)()
	l := h.listen(t)
	var conns, server, clients sync.WaitGroup
	server.Go(func() { serve(t, l, plans, &conns) })
	queue := make(chan *plan)
	for range together {
		clients.Go(func() {
			for p := range queue {
				err := p.dial(h, l.Addr())
				nstest.ErrorIf(t, err != nil, "%v: %v", p, err)
			}
		})
	}
	for i := first; i < first+n; i++ {
		queue <- plans[uint32(i)]
	}
	close(queue)
	clients.Wait()
	h.atRest(t)
	l.Close()
	server.Wait()
	conns.Wait()
	for _, p := range plans {
		why := p.judge()
		nstest.ErrorIf(t, why != "", "%v:\n%s", p, why)
	}
}

// atRest waits until no connection is left, nor any of their resources.
func (h *hosts) atRest(t *testing.T) {
	t.Helper()
	why := ""
	if !await.Comes(func() bool {
		why = ""
		for i, s := range []*vianet.Stack{h.a, h.b} {
			if left := leftOf(s, []*vipl.NIC{h.nicA, h.nicB}[i], h.tags[i]); left != "" {
				why += fmt.Sprintf("host %d: %s\n", i, left)
			}
		}
		return why == ""
	}) {
		t.Errorf("connections have left something:\n%s", why)
	}
}

// leftOf returns what is left on a NIC of connections that are gone; "" means nothing.
func leftOf(s *vianet.Stack, nic *vipl.NIC, tags int) string {
	kept, unsettled := vianet.Kept(s)
	status := nic.Status()
	if unsettled == "" && len(status.VIs) == 0 && status.Ptags == tags && status.Mem.Regions == kept {
		return ""
	}
	return fmt.Sprintf("%s%d VIs, %d tags of %d, %d regions, of which %d are kept",
		unsettled, len(status.VIs), status.Ptags, tags, status.Mem.Regions, kept)
}
