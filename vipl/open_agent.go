package vipl

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/kagent"
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

// openAgent selects the Kernel Agent and opens the interface through it.
func openAgent(o *options) (openedAgent, error) {
	if err := needDescriptors(); err != nil {
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
	if here != nil && kagent.Unavailable(here) {
		here = errors.Join(here, err) // report both, since either would do
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

// needDescriptors fails if few descriptors are free. With its first file Go's runtime opens two more, and ends the process if it
// cannot: a C program, whose first call may be the one that opens a NIC, would end instead of getting an error.
func needDescriptors() (err error) {
	var all [4]int // with those two, a file and a socket
	n := 0
	for ; n < len(all) && err == nil; n++ {
		all[n], err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
	if err != nil {
		n--
	}
	for _, fd := range all[:n] {
		_ = unix.Close(fd)
	}
	return err
}
