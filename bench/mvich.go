package bench

import (
	"errors"
	"sync"

	"viaxdp/mvich"
	"viaxdp/vipl"
)

// ranks is a job of two ranks of package mvich: blocking sends and receives in a
// ping-pong, and in a stream windows of those that are begun, as the benchmarks
// of Ohio State University have it. Messages lie in memory of the NIC's arena.
type ranks struct {
	params  Params
	watch   watchdog
	nic     *vipl.NIC
	meeting *meeting
	began   chan error // from Init
	world   *mvich.World
	out, in []byte
	window  []*mvich.Request
}

const (
	rankTag   = 1
	rankBytes = 4 << 20 // of a stream under way
	rankMost  = 64      // messages of it
)

func openRanks(p Params, w watchdog) (*ranks, error) {
	r := &ranks{params: p, watch: w}
	var err error
	if r.nic, err = openNIC(p, vipl.WithChunks(ringChunks, ringChunks)); err != nil {
		return nil, err
	}
	r.meeting = newMeeting(p.Server)
	r.began = make(chan error, 1)
	go func() {
		var err error
		r.world, err = mvich.Init(r.nic, r.meeting)
		r.meeting.end() // nobody waits any more for what it has not published
		r.began <- err
	}()
	return r, nil
}

func (r *ranks) Hello() Hello {
	h := Hello{Addr: r.params.Local, Facts: factsOf(r.nic)}
	select {
	case h.Record = <-r.meeting.own:
	case <-r.meeting.over: // Connect will say why
	}
	return h
}

// Connect, see Endpoint. The VIs of two ranks are connected when the first of
// them has something to send.
func (r *ranks) Connect(peer Hello) error {
	r.meeting.peer <- peer.Record
	err := <-r.began
	r.began = nil
	if err != nil {
		return err
	}
	if r.out, err = r.world.Alloc(r.params.MaxBytes); err != nil {
		return err
	}
	if r.in, err = r.world.Alloc(r.params.MaxBytes); err != nil {
		return err
	}
	return r.world.Comm().Barrier()
}

// partner is the other rank.
func (r *ranks) partner() int { return 1 - r.world.Rank() }

func (r *ranks) enter(round Round) error {
	if err := round.check(); err != nil {
		return err
	}
	if round.Bytes > len(r.out) {
		return errors.New("message larger than announced")
	}
	if r.watch.stop != nil && r.watch.stop.Load() {
		return ErrStopped
	}
	return nil
}

func (r *ranks) send(round Round, i int) error {
	return r.world.Comm().Send(r.fill(i, round), r.partner(), rankTag)
}

func (r *ranks) fill(i int, round Round) []byte {
	b := r.out[:round.Bytes]
	if round.Check {
		copy(b, content(i, 0, round.Bytes))
	}
	return b
}

func (r *ranks) receive(round Round, i int) error {
	b := r.in[:round.Bytes]
	got, err := r.world.Comm().Recv(b, r.partner(), rankTag)
	switch {
	case err != nil:
		return err
	case got.Bytes != round.Bytes:
		return errors.New("a message of another size came")
	case round.Check:
		return verify(i, 0, b)
	}
	return nil
}

// Ping, see Endpoint.
func (r *ranks) Ping(round Round, rtt []int64) (Span, error) { return pingBy(r, round, rtt) }

// Echo, see Endpoint.
func (r *ranks) Echo(round Round) error { return echoBy(r, round) }

// Send, see Endpoint. One byte says that the receiver is ready, another one that
// it has all.
func (r *ranks) Send(round Round) (Span, error) {
	if err := r.enter(round); err != nil {
		return Span{}, err
	}
	c := r.world.Comm()
	word := make([]byte, 1)
	if _, err := c.Recv(word, r.partner(), rankTag); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	err := r.inWindows(round, func(i int) (*mvich.Request, error) {
		return c.Isend(r.fill(i, round), r.partner(), rankTag)
	}, nil)
	if err != nil {
		return Span{}, err
	}
	if _, err := c.Recv(word, r.partner(), rankTag); err != nil {
		return Span{}, err
	}
	return clock.span(), nil
}

// Receive, see Endpoint.
func (r *ranks) Receive(round Round) (Span, error) {
	if err := r.enter(round); err != nil {
		return Span{}, err
	}
	c := r.world.Comm()
	word := make([]byte, 1)
	if err := c.Send(word, r.partner(), rankTag); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	err := r.inWindows(round, func(int) (*mvich.Request, error) {
		return c.Irecv(r.in[:round.Bytes], r.partner(), rankTag)
	}, func(i int) error {
		if round.Check {
			return verify(i, 0, r.in[:round.Bytes])
		}
		return nil
	})
	if err != nil {
		return Span{}, err
	}
	return clock.span(), c.Send(word, r.partner(), rankTag)
}

// inWindows keeps a number of requests under way, the first of which is waited
// for when another one is to begin. All have one buffer; where its bytes are
// looked at, one is under way at a time.
func (r *ranks) inWindows(round Round, begin func(i int) (*mvich.Request, error), done func(i int) error) error {
	depth := max(2, min(rankMost, rankBytes/round.Bytes))
	if round.Check {
		depth = 1
	}
	if r.window == nil {
		r.window = make([]*mvich.Request, rankMost)
	}
	w := r.window[:depth]
	end := func(i int) error {
		_, err := w[i%depth].Wait()
		if err == nil && done != nil {
			err = done(i)
		}
		return err
	}
	for i := range round.Messages {
		if i >= depth {
			if err := end(i - depth); err != nil {
				return err
			}
		}
		q, err := begin(i)
		if err != nil {
			return err
		}
		w[i%depth] = q
	}
	for i := max(0, round.Messages-depth); i < round.Messages; i++ {
		if err := end(i); err != nil {
			return err
		}
	}
	return nil
}

// Close, see Endpoint.
func (r *ranks) Close() error {
	var errs []error
	r.meeting.end()
	if r.began != nil {
		<-r.began // which fails if the two were never connected
	}
	if r.watch.stop != nil && r.watch.stop.Load() {
		return r.nic.Close() // the other rank does not take its leave
	}
	if r.world != nil {
		errs = append(errs, r.world.Finalize())
	}
	return errors.Join(append(errs, r.nic.Close())...)
}

// meeting is the mvich.Launcher of two ranks whose records the coordinator
// carries from one to the other: by Hello and Connect.
type meeting struct {
	rank  int
	own   chan string // what this rank has published
	peer  chan string // what the other one has
	other string
	over  chan struct{}
	end   func() // no record will come any more
}

func newMeeting(server bool) *meeting {
	m := &meeting{own: make(chan string, 1), peer: make(chan string, 1), over: make(chan struct{})}
	if server {
		m.rank = 1
	}
	m.end = sync.OnceFunc(func() { close(m.over) })
	return m
}

func (m *meeting) Rank() int { return m.rank }
func (m *meeting) Size() int { return 2 }

func (m *meeting) Put(_, value string) error {
	m.own <- value
	return nil
}

func (m *meeting) Fence() error {
	select {
	case m.other = <-m.peer:
		return nil
	case <-m.over:
		return ErrStopped
	}
}

func (m *meeting) Get(string) (string, error) { return m.other, nil }
func (m *meeting) Abort(int) error            { return nil }
func (m *meeting) Close() error               { return nil }
