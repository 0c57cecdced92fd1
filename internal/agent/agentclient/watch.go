package agentclient

import (
	"sync"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
)

// watchers are the handles of a session that want to know of changes of the
// interface. While the agent is away nobody knows of any; the next one begins with
// how things are.
type watchers struct {
	mu   sync.Mutex // held while they are told; nobody who waits for the agent has it
	told map[*Agent]func(kagent.Link)
	last *kagent.Link // nil: the agent has not said anything yet
}

// changed takes what the agent says. The reader does not wait for those who are
// told: they may wait for somebody who waits for a reply.
func (s *session) changed(l kagent.Link) {
	select {
	case <-s.links:
	default:
	}
	s.links <- l // nobody else puts anything in
}

// tellLinks hands it on, and asks for the next change, until the session is over.
func (s *session) tellLinks() {
	for {
		select {
		case l := <-s.links:
			s.watchers.tell(l)
			s.tell(agentproto.Request{Op: agentproto.OpWatch})
		case <-s.ctx.Done():
			return
		}
	}
}

func (w *watchers) tell(l kagent.Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &l
	for _, f := range w.told {
		f(l)
	}
}

// watch asks the agent for changes, the first time; the next agent is asked by
// resume.
func (s *session) watch() {
	s.mu.Lock()
	first := !s.watches
	s.watches = true
	s.mu.Unlock()
	if first {
		s.tell(agentproto.Request{Op: agentproto.OpWatch})
	}
}

// Watch tells of changes of the interface; see kagent.Agent.
func (a *Agent) Watch(f func(kagent.Link)) {
	if a.isClosed() {
		return
	}
	s := a.share.session
	w := &s.watchers
	w.mu.Lock()
	if f == nil {
		delete(w.told, a)
		w.mu.Unlock()
		return
	}
	if w.told == nil {
		w.told = make(map[*Agent]func(kagent.Link))
	}
	w.told[a] = f
	if w.last != nil {
		f(*w.last)
	}
	w.mu.Unlock()
	s.watch()
}
