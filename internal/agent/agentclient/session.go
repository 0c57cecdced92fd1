package agentclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/wire"
)

// Times of a session.
const (
	helloTime  = 5 * time.Second        // limit for the agent's answer to hello
	openTime   = 30 * time.Second       // limit for its answer to open: the link of a NIC may be reset
	callTime   = 10 * time.Second       // limit for calls without another, the agent's absence included
	cancelTime = 500 * time.Millisecond // limit for the answer to a cancelled call; what comes later is given back
	writeTime  = 100 * time.Millisecond // after it, what the agent does not take is sent in the background
	firstLook  = 20 * time.Millisecond  // pauses between attempts to find the next agent
	lastLook   = 500 * time.Millisecond
)

// session is a connection to the daemon, and after its death to the next one.
type session struct {
	socket string
	token  []byte
	ctx    context.Context // ends when the session is over
	cancel context.CancelFunc
	reader chan struct{} // closed when its goroutine has ended
	netns  *os.File      // in which run starts the next agent, and which it closes; nil: it starts none

	wmu     sync.Mutex     // one message at a time; taken before mu
	unsent  *unsent        // nil: the agent takes what is sent; guarded by wmu
	telling sync.WaitGroup // goroutines of the reader

	watchers watchers
	links    chan kagent.Link // the latest report for the watchers only

	mu       sync.Mutex
	conn     *net.UnixConn // nil: the agent is away
	agents   uint64        // number of agents so far, this one included
	next     uint64
	calls    map[uint64]*call
	incoming map[uint64]*incoming
	listens  map[*listener]struct{}
	watches  bool  // the agent is to report changes of the interface
	over     error // why the session is over
}

// call is a request that waits for its reply.
type call struct {
	request  agentproto.Request
	listener *listener // a Wait at it, with the handle that it has at this agent
	opens    *listener // gets its handle from the reply
	agent    uint64    // number of the agent whose handle is in the request; 0: no handle
	until    time.Time // zero: no limit
	again    bool      // may be repeated to the next agent, unless cancelled
	takes    bool      // the caller takes the files of the reply; else they are closed
	done     chan struct{}
	// cancelled is why the caller gives up; nil: it waits. Guarded by session.mu.
	cancelled error
	by        uint64    // the agent that replied; valid when done is closed, as are the fields below
	arrived   *incoming // of reply.Incoming
	reply     agentproto.Reply
	files     []*os.File
	err       error
}

// newSession begins a session, which gets netns.
func newSession(socket string, token []byte, c *net.UnixConn, r *agentproto.Reader, netns *os.File) *session {
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{
		socket: socket, token: token, conn: c, agents: 1, next: 16, netns: netns,
		ctx: ctx, cancel: cancel, reader: make(chan struct{}), links: make(chan kagent.Link, 1),
		calls: make(map[uint64]*call), incoming: make(map[uint64]*incoming), listens: make(map[*listener]struct{}),
	}
	go s.run(r)
	return s
}

// run reads the agent's messages, and looks for the next agent when this one has died.
func (s *session) run(r *agentproto.Reader) {
	defer close(s.reader)
	defer s.telling.Wait()
	defer fds.CloseFiles(s.netns)
	s.telling.Go(s.tellLinks)
	for {
		for {
			reply, files, err := r.ReadReply()
			if err != nil {
				fds.CloseFiles(files...)
				break
			}
			s.take(&reply, files)
		}
		s.lost()
		if r = s.comeBack(); r == nil {
			return
		}
	}
}

// take passes a reply to the call that waits for it.
func (s *session) take(reply *agentproto.Reply, files []*os.File) {
	defer func() { fds.CloseFiles(files...) }() // those that no call took
	if reply.ID == 0 && reply.Link != nil {
		s.changed(*reply.Link)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reply.ID == 0 {
		if in := s.incoming[reply.Ended]; in != nil {
			delete(s.incoming, reply.Ended)
			in.end(replyError(reply))
		}
		return
	}
	c := s.calls[reply.ID]
	if c == nil {
		s.giveBack(reply)
		return
	}
	delete(s.calls, reply.ID)
	c.by, c.reply, c.err = s.agents, *reply, replyError(reply)
	if c.takes {
		c.files, files = files, nil
	}
	if c.opens != nil && c.err == nil {
		c.opens.handle = reply.Handle
		s.listens[c.opens] = struct{}{}
	}
	if reply.Incoming != nil {
		c.arrived = newIncoming(s, s.agents, reply.Incoming)
		s.incoming[reply.Incoming.Handle] = c.arrived
	}
	close(c.done)
}

// giveBack returns to the agent whatever the reply to an abandoned call brought. The reader
// does not wait for it. Caller holds s.mu.
func (s *session) giveBack(reply *agentproto.Reply) {
	var q agentproto.Request
	switch {
	case reply.Error != nil:
		return
	case reply.Handle != 0:
		q = agentproto.Request{Op: agentproto.OpUnlisten, Handle: reply.Handle}
	case reply.Incoming != nil:
		q = agentproto.Request{Op: agentproto.OpReject, Handle: reply.Incoming.Handle, Reason: wire.CMReasonResources}
	case reply.Answer != nil:
		q = agentproto.Request{Op: agentproto.OpDecline, Handle: reply.Answer.Handle, Reason: wire.CMReasonResources}
	case reply.VI != 0:
		q = agentproto.Request{Op: agentproto.OpFreeVI, VI: reply.VI}
	default:
		return
	}
	agent := s.agents
	s.telling.Go(func() { s.tellOf(agent, q) })
}

func replyError(r *agentproto.Reply) error {
	if r.Error == nil {
		return nil
	}
	return r.Error
}

var errRestarted = fmt.Errorf("%w: the agent has died meanwhile", kagent.ErrVanished)

// lost records the agent's death.
func (s *session) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agents++
	s.forgetAgent(errRestarted)
	for id, c := range s.calls {
		switch {
		case c.cancelled != nil:
			s.fail(id, c.cancelled)
		case !c.again:
			s.fail(id, errRestarted)
		}
	}
}

// fail ends a call. Caller holds s.mu.
func (s *session) fail(id uint64, err error) {
	c := s.calls[id]
	delete(s.calls, id)
	c.err = err
	close(c.done)
}

// comeBack connects to the next agent, and repeats the requests that have no reply. It returns nil when the
// session is over.
func (s *session) comeBack() *agentproto.Reader {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		select {
		case <-s.ctx.Done():
			return nil
		case <-time.After(pause):
		}
		r, err := s.resume()
		switch {
		case err == nil:
			return r
		case errors.Is(err, agentproto.ErrToken):
			s.finish(fmt.Errorf("%w: %w", kagent.ErrClosed, err))
			return nil
		case s.netns != nil && Absent(err):
			s.startAgent()
		}
	}
}

func (s *session) resume() (*agentproto.Reader, error) {
	ctx, cancel := context.WithTimeout(s.ctx, helloTime)
	defer cancel()
	c, r, _, err := dial(ctx, s.socket)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(s.ctx, func() { _ = c.Close() })() // an agent that does not answer does not hold finish up
	_, files, err := exchange(c, r, &agentproto.Request{ID: 2, Op: agentproto.OpResume, Token: s.token}, helloTime)
	fds.CloseFiles(files...)
	var opened []*listener
	if err == nil {
		opened, err = s.listenAgain(c, r)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	s.wmu.Lock() // a cancellation comes after the request
	defer s.wmu.Unlock()
	s.mu.Lock()
	if s.over != nil {
		s.mu.Unlock()
		return nil, errors.Join(s.over, c.Close())
	}
	s.conn = c
	again := s.askAgain(opened)
	s.mu.Unlock()
	for _, q := range again {
		_ = s.writeLocked(c, q) // an error means that this agent is lost, too
	}
	return r, nil
}

// listenAgain opens the listeners at the next agent, and returns those that it has opened.
func (s *session) listenAgain(c *net.UnixConn, r *agentproto.Reader) (opened []*listener, err error) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.listens))
	s.mu.Unlock()
	for i, l := range all {
		reply, files, err := exchange(c, r, &agentproto.Request{ID: uint64(3 + i), Op: agentproto.OpListen, Local: &l.local}, helloTime)
		fds.CloseFiles(files...)
		var refused *agentproto.Error
		switch {
		case errors.As(err, &refused): // another program was faster: Waits at l report it
			reply.Handle = 0
		case err != nil:
			return nil, err
		default:
			opened = append(opened, l)
		}
		s.mu.Lock()
		l.handle = reply.Handle
		s.mu.Unlock()
	}
	return opened, nil
}

// askAgain returns the requests for the next agent, which has opened these listeners, in the order in which they were made.
// Waits at other listeners fail. Caller holds s.mu.
func (s *session) askAgain(opened []*listener) (again []*agentproto.Request) {
	for _, id := range slices.Sorted(maps.Keys(s.calls)) {
		c := s.calls[id]
		if c.cancelled != nil { // while no agent was there
			s.fail(id, c.cancelled)
			continue
		}
		if c.listener != nil {
			if err := c.listener.lost(); err != nil {
				s.fail(id, err)
				continue
			}
		}
		again = append(again, c.message())
	}
	for _, l := range opened {
		if l.closed { // meanwhile
			s.next++
			again = append(again, &agentproto.Request{ID: s.next, Op: agentproto.OpUnlisten, Handle: l.handle})
		}
	}
	if s.watches {
		s.next++
		again = append(again, &agentproto.Request{ID: s.next, Op: agentproto.OpWatch})
	}
	return again
}

// close tells the agent that the session is over, and waits at most limit for the agent to
// clean up. Without an agent, the end of the sign of life reports the close to the next one.
func (s *session) close(limit time.Duration) {
	late := time.AfterFunc(limit, func() { s.finish(kagent.ErrClosed) })
	s.mu.Lock()
	present := s.conn != nil
	s.mu.Unlock()
	if present {
		_, _ = s.do(context.Background(), &call{request: agentproto.Request{Op: agentproto.OpClose}})
	}
	late.Stop()
	s.finish(kagent.ErrClosed)
	<-s.reader
}

// finish ends the session: everything that is under way ends with err.
func (s *session) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return
	}
	s.over = err
	s.cancel()
	s.forgetAgent(err)
	for id := range s.calls {
		s.fail(id, err)
	}
}

// forgetAgent closes the connection, and ends the exchanges that the agent manages. Caller holds s.mu.
func (s *session) forgetAgent(err error) {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
	for h, in := range s.incoming {
		delete(s.incoming, h)
		in.end(err)
	}
}

// message returns the request for the current agent, with the remaining time. Caller holds the session's mu.
func (c *call) message() *agentproto.Request {
	q := c.request
	if c.listener != nil {
		q.Handle = c.listener.handle
	}
	if !c.until.IsZero() {
		q.Timeout = max(time.Until(c.until), time.Nanosecond)
	}
	return &q
}

// write sends a message to an agent; nil: the agent is away.
func (s *session) write(c *net.UnixConn, q *agentproto.Request) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	return s.writeLocked(c, q)
}

// callOf is do for requests about an exchange of one agent.
func (s *session) callOf(ctx context.Context, agent uint64, q agentproto.Request) error {
	_, err := s.do(ctx, &call{request: q, agent: agent})
	return err
}

// do sends a call's request and waits for the reply or, if ctx ends, for the reply to the cancellation.
func (s *session) do(ctx context.Context, c *call) (agentproto.Reply, error) {
	s.mu.Lock()
	conn, q, err := s.enter(ctx, c)
	s.mu.Unlock()
	if err != nil {
		return agentproto.Reply{}, err
	}
	// Without an agent, or if this one dies, resume sends it.
	if err := s.write(conn, q); errors.Is(err, agentproto.ErrProtocol) {
		s.drop(c)
		return agentproto.Reply{}, err
	}
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
	}
	// The outcome may be under way, and takes precedence.
	s.mu.Lock()
	c.cancelled = context.Cause(ctx)
	conn = s.conn
	s.mu.Unlock()
	if s.write(conn, &agentproto.Request{ID: c.request.ID, Op: agentproto.OpCancel, Target: c.request.ID}) == nil {
		select {
		case <-c.done:
			return c.reply, c.err
		case <-time.After(cancelTime):
		}
	}
	if !s.drop(c) {
		<-c.done // just now
		return c.reply, c.err
	}
	return agentproto.Reply{}, context.Cause(ctx)
}

// enter registers a call as under way. Its message is to be sent on conn, which is nil while the agent is
// away. Caller holds s.mu.
func (s *session) enter(ctx context.Context, c *call) (conn *net.UnixConn, q *agentproto.Request, err error) {
	c.done = make(chan struct{})
	if until, ok := ctx.Deadline(); ok {
		c.until = until
	}
	if c.listener != nil {
		err = c.listener.lost()
	}
	switch {
	case s.over != nil:
		return nil, nil, s.over
	case err != nil:
		return nil, nil, err
	case !c.again && s.conn == nil, c.agent != 0 && c.agent != s.agents:
		return nil, nil, errRestarted
	}
	s.next++
	c.request.ID = s.next
	s.calls[c.request.ID] = c
	return s.conn, c.message(), nil
}

// release asks the agent to take something back, and waits for the reply until ctx ends. The request stays, for this
// agent or the next one.
func (s *session) release(ctx context.Context, c *call) error {
	s.mu.Lock()
	conn, q, err := s.enter(context.Background(), c)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.awaitReleased(ctx, c, conn, q)
}

// awaitReleased sends a call's message and waits for the reply, if one comes before ctx ends.
func (s *session) awaitReleased(ctx context.Context, c *call, conn *net.UnixConn, q *agentproto.Request) error {
	_ = s.write(conn, q)
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drop forgets a call, and reports whether it was under way. A later reply to it is given back.
func (s *session) drop(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.calls[c.request.ID] == c
	delete(s.calls, c.request.ID)
	return was
}

// tell sends a request that has no reply.
func (s *session) tell(q agentproto.Request) { s.tellOf(0, q) }

// tellOf is tell for a request about an exchange of one agent; 0: about no exchange.
func (s *session) tellOf(agent uint64, q agentproto.Request) {
	s.mu.Lock()
	s.next++
	q.ID = s.next
	conn := s.conn
	if agent != 0 && agent != s.agents {
		conn = nil
	}
	s.mu.Unlock()
	_ = s.write(conn, &q) // if the agent is away, the next one does not know of it either
}

// bounded is a context for calls that must not wait for long.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callTime)
}
