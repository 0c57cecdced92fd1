package torture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/testbed"
	"viaxdp/kagent/agentclient"
)

// agents are a Kernel Agent in each party's namespace; none of them: parties open interfaces by themselves.
type agents struct {
	dir  string // of their sockets
	each [2]*testbed.Process
	said [2]bytes.Buffer // read only after the process has ended
}

// serveWithin is how long an agent may take to serve.
const serveWithin = time.Minute

// startAgents starts both, and waits until they serve.
func (b *Bed) startAgents() (err error) {
	if b.agents.dir, err = os.MkdirTemp("", "via-xdp-torture"); err != nil {
		return err
	}
	for side := range b.agents.each {
		args := append(append([]string(nil), b.cfg.AgentArgs...), "--socket", b.agents.path(side))
		p, err := b.Site.Spawn(side, args, &b.agents.said[side])
		if err != nil {
			return err
		}
		b.agents.each[side] = p
		for end := time.Now().Add(serveWithin); ; time.Sleep(5 * time.Millisecond) {
			_, err := agentclient.Probe(b.agents.path(side))
			if err == nil {
				break
			}
			select {
			case <-p.Exited():
				err = fmt.Errorf("it has ended: %s", bytes.TrimSpace(b.agents.said[side].Bytes()))
			default:
				if time.Now().Before(end) {
					continue
				}
			}
			return fmt.Errorf("agent of side %d: %w", side, err)
		}
	}
	return nil
}

func (a *agents) path(side int) string { return filepath.Join(a.dir, fmt.Sprint("agent", side)) }

// socket is that of a side's agent; empty where there is none.
func (a *agents) socket(side int) string {
	if a.each[side] == nil {
		return ""
	}
	return a.path(side)
}

// close ends them. The second time it does nothing.
func (a *agents) close() error {
	var errs []error
	for side, p := range a.each {
		if p != nil {
			if err := errors.Join(p.Signal(unix.SIGTERM), p.Close()); err != nil {
				errs = append(errs, fmt.Errorf("agent of side %d: %w: %s", side, err, bytes.TrimSpace(a.said[side].Bytes())))
			}
			a.each[side] = nil
		}
	}
	if a.dir != "" {
		errs = append(errs, os.RemoveAll(a.dir))
		a.dir = ""
	}
	return errors.Join(errs...)
}

// Detach takes the XDP program off a side's interface, whoever has attached it.
func (b *Bed) Detach(side int) error {
	if p := b.agents.each[side]; p != nil {
		return detach(p.Pid)
	}
	return b.Parties[side].Detach()
}
