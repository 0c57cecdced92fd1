package vipl

import (
	"errors"

	"viaxdp/hugepages"
	"viaxdp/kagent"
	"viaxdp/kagent/agentclient"
	"viaxdp/kagent/agentproto"
	"viaxdp/xdpnic"
)

// openedAgent is an agent with what it has opened: kagent.Local in this process,
// agentclient.Agent in the daemon.
type openedAgent interface {
	kagent.Agent
	Queue() *xdpnic.Queue
	Arena() *hugepages.Arena
	Info() kagent.Info
}

// openAgent finds the Kernel Agent.
func openAgent(o *options) (openedAgent, error) {
	socket, named, ok := o.socket, o.socket != "", o.socket != "none"
	if !named {
		socket, named, ok = agentclient.Socket()
	}
	if !ok {
		return openLocal(o.agent)
	}
	remote, err := agentclient.Open(socket, named, o.agent)
	switch {
	case err == nil:
		return remote, nil
	case named, !agentclient.Absent(err) && !errors.Is(err, agentproto.ErrNotServed):
		return nil, err
	}
	local, here := openLocal(o.agent)
	if here != nil && kagent.Unavailable(here) {
		here = errors.Join(here, err) // either way would do
	}
	return local, here
}

func openLocal(cfg kagent.Config) (openedAgent, error) {
	local, err := kagent.Open(cfg)
	if err != nil {
		return nil, err // and no agent, rather than one that is nil
	}
	return local, nil
}
