package vipl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/xdpnic"
)

// openedAgent is an agent that has opened its queue and arena: device.Local in this process, or agentclient.Agent
// for the daemon.
type openedAgent interface {
	kagent.Agent
	Queue() *xdpnic.Queue
	Arena() *hugepages.Arena
	UMEM() []byte
	Info() kagent.Info
}

// openDescriptors must be free before the first file is opened. With that file Go's runtime opens two more, and ends the
// process if it cannot: a C program, whose first call may be the one that opens a NIC, would end instead of getting an error.
const openDescriptors = 4 // with those two, a file and a socket

// openAgent selects the Kernel Agent and opens the interface through it.
func openAgent(o *options) (openedAgent, error) {
	if err := fds.Need(openDescriptors); err != nil {
		return nil, &kagent.OpError{Op: "open", Link: o.agent.Interface, Err: err}
	}
	socket, named, ok := o.socket, o.socket != "", o.socket != "none"
	if !named {
		socket, named, ok = agentclient.Socket()
	}
	if socket == agentclient.Auto {
		var err error
		if socket, err = agentclient.Start(context.Background()); err != nil {
			return nil, &kagent.OpError{Op: "open", Link: o.agent.Interface, Err: err}
		}
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
	switch refused := errors.Is(err, agentproto.ErrNotServed) || errors.Is(err, fs.ErrPermission); {
	case here == nil:
	case kagent.Unavailable(here):
		here = errors.Join(here, err) // report both, since either would do
	case refused:
		here = fmt.Errorf("%w; %v", here, err) // not %w: what the agent refuses does not mean that this program cannot run
	}
	return local, here
}

func openLocal(cfg kagent.Config) (openedAgent, error) {
	local, err := device.Open(cfg)
	if err != nil {
		return nil, err // not local: a nil *Local in an interface is not nil
	}
	return local, nil
}
