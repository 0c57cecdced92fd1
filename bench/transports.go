package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// A transport is one way to carry messages.
type transport struct {
	name    string
	summary string
	xdp     bool // over the pair for AF_XDP; else over the pair without any program
	sleeps  bool // blocks while it waits for messages; else it polls
	free    bool // the Go scheduler places its goroutine: no locked thread
	arena   bool // maps memory on hugepages when it opens
	whole   bool // its latency is that of a whole round trip, not of one way
	vi      bool // takes VIOptions
	rdma    bool // a VI whose messages are RDMA
	chains  bool // its frames may be longer than a chunk
	layer   bool // a layer above VIs
	open    func(opening) (Endpoint, error)
}

// transports are all of them, in the order of the report. The baselines come
// first.
var transports = slices.Concat([]transport{
	{name: "raw-afxdp", xdp: true, arena: true, chains: true,
		summary: "frames on AF_XDP rings, no VI, polling", open: openFramedXDP(inChunk)},
	{name: "raw-afxdp-copy", xdp: true, arena: true, chains: true,
		summary: "the same, the content copied out on arrival", open: openFramedXDP(copied)},
	{name: "raw-afxdp-wait", xdp: true, arena: true, sleeps: true, chains: true,
		summary: "raw-afxdp, sleeping in poll", open: openFramedXDP(inChunk)},
}, asavieTransports, []transport{
	{name: "vi-unreliable", xdp: true, arena: true, vi: true, chains: true,
		summary: "VI, Unreliable Delivery, polling", open: openVI(vipl.UnreliableDelivery)},
	{name: "vi-unreliable-wait", xdp: true, arena: true, sleeps: true, vi: true, chains: true,
		summary: "the same, waiting", open: openVI(vipl.UnreliableDelivery)},
	{name: "vi-reliable-delivery", xdp: true, arena: true, vi: true, chains: true,
		summary: "VI, Reliable Delivery, polling", open: openVI(vipl.ReliableDelivery)},
	{name: "vi-no-segmentation", xdp: true, arena: true, vi: true, chains: true,
		summary: "the same, without segmentation offload: each frame alone", open: openVIWithout},
	{name: "vi-reliable-delivery-wait", xdp: true, arena: true, sleeps: true, vi: true, chains: true,
		summary: "the same, waiting", open: openVI(vipl.ReliableDelivery)},
	{name: "vi-reliable-reception", xdp: true, arena: true, vi: true, chains: true,
		summary: "VI, Reliable Reception, polling", open: openVI(vipl.ReliableReception)},
	{name: "vi-reliable-reception-wait", xdp: true, arena: true, sleeps: true, vi: true, chains: true,
		summary: "the same, waiting", open: openVI(vipl.ReliableReception)},
	{name: "vi-rdma-write", xdp: true, arena: true, vi: true, rdma: true, chains: true,
		summary: "RDMA writes, Reliable Delivery, polling memory", open: openRDMAWrite},
	{name: "vi-rdma-read", xdp: true, arena: true, whole: true, vi: true, rdma: true, chains: true,
		summary: "RDMA reads, likewise; latency is a round trip: one read", open: openRDMARead},
	{name: "tcp-spin",
		summary: "TCP_NODELAY, non-blocking system calls in a loop", open: openTCPEndpoint},
	{name: "tcp-block", sleeps: true,
		summary: "TCP_NODELAY, blocking system calls", open: openTCPEndpoint},
	{name: "tcp-net", free: true, sleeps: true,
		summary: "TCP by package net", open: openNetEndpoint(false)},
	{name: "udp-spin",
		summary: "UDP, non-blocking system calls in a loop", open: openUDPEndpoint},
	{name: "udp-block", sleeps: true,
		summary: "the same, sleeping in poll", open: openUDPEndpoint},
	{name: "vianet", xdp: true, free: true, sleeps: true, arena: true, layer: true,
		summary: "a net.Conn of package vianet", open: openNetEndpoint(true)},
})

// An opening is what an endpoint is opened with.
type opening struct {
	Params
	stop   *atomic.Bool // ends waits when it becomes true; may be nil
	sleeps bool         // as the transport's
}

// openVIWithout opens a VI whose messages do not leave in GSO packets.
func openVIWithout(o opening) (Endpoint, error) {
	o.VI.NoSegmentation = true
	return openVI(vipl.ReliableDelivery)(o)
}

// arrival says what becomes of the content of a raw frame that has arrived.
type arrival bool

const (
	inChunk arrival = false // it stays in the chunk
	copied  arrival = true
)

func openFramedXDP(a arrival) func(opening) (Endpoint, error) {
	return func(o opening) (Endpoint, error) {
		w := watchdog{stop: o.stop}
		io, err := openRawXDP(o.Params, w)
		if err != nil {
			return nil, err
		}
		f := &framed{io: io, sleeps: o.sleeps, watch: w}
		if a == copied {
			f.into = make([]byte, o.MaxBytes)
		}
		return f, nil
	}
}

func openTCPEndpoint(o opening) (Endpoint, error) {
	return endpointOr(openTCP(o.Params, watchdog{stop: o.stop, most: o.WaitLimit}, o.sleeps))
}

func openNetEndpoint(overVianet bool) func(opening) (Endpoint, error) {
	return func(o opening) (Endpoint, error) {
		return endpointOr(openNetStream(o.Params, watchdog{stop: o.stop}, overVianet))
	}
}

func openUDPEndpoint(o opening) (Endpoint, error) {
	io, err := openUDP(o.Params)
	if err != nil {
		return nil, err
	}
	return &framed{io: io, sleeps: o.sleeps, watch: watchdog{stop: o.stop}}, nil
}

// endpointOr keeps a nil pointer of a failed open from becoming an Endpoint.
func endpointOr[T Endpoint](e T, err error) (Endpoint, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Names lists the transports in the order of the report, without [Layers].
func Names() []string { return namesOf(func(t transport) bool { return !t.layer }) }

// Layers lists the transports that are layers above VIs.
func Layers() []string { return namesOf(func(t transport) bool { return t.layer }) }

func namesOf(some func(transport) bool) []string {
	var names []string
	for _, t := range transports {
		if some(t) {
			names = append(names, t.name)
		}
	}
	return names
}

// TakesVIOptions reports whether rows of a transport may have VIOptions.
func TakesVIOptions(name string) bool {
	t, err := find(name)
	return err == nil && t.vi
}

// Summary is one line about a transport; empty for an unknown name.
func Summary(name string) string {
	t, err := find(name)
	if err != nil {
		return ""
	}
	return t.summary
}

// UsesXDP reports whether a transport opens AF_XDP sockets.
func UsesXDP(name string) bool {
	t, err := find(name)
	return err == nil && t.xdp
}

func find(name string) (*transport, error) {
	i := slices.IndexFunc(transports, func(t transport) bool { return t.name == name })
	if i < 0 {
		if strings.HasPrefix(name, "asavie-") {
			return nil, fmt.Errorf("transport %q is not built in: build with -tags asavie", name)
		}
		return nil, fmt.Errorf("unknown transport %q: there are %s", name, strings.Join(slices.Concat(Names(), Layers()), ", "))
	}
	return &transports[i], nil
}

// RoundTrip reports whether the latency of a transport is that of a whole round
// trip, a request and its answer, and so not to be compared with that of
// others, which is half of one.
func RoundTrip(name string) bool {
	t, err := find(name)
	return err == nil && t.whole
}

// Open opens one side of a transport. stop, which may be nil, ends waits when
// it becomes true.
func Open(name string, p Params, stop *atomic.Bool) (Endpoint, error) {
	t, err := find(name)
	if err != nil {
		return nil, err
	}
	if p.MaxBytes == 0 {
		p.MaxBytes = MaxMessage
	}
	if p.Mode == "" {
		p.Mode = "auto"
	}
	row := Row{Name: name, VI: p.VI, Beside: p.Beside}
	if err := row.validate(); err != nil {
		return nil, err
	}
	if row.usesXDP() && !t.vi && !t.layer { // a VI's NIC may be opened by an agent, and says what is missing
		if err := testbed.Require(testbed.Sockets, testbed.Programs); err != nil {
			return nil, err
		}
	}
	open := t.open
	if p.Beside {
		open = openBeside(t.open)
	}
	e, err := open(opening{p, stop, t.sleeps})
	switch {
	case err == nil:
		return e, nil
	case vipl.Unavailable(err):
		return nil, testbed.CannotRun(err)
	}
	return nil, err
}

// beside is a transport of the kernel on an interface with the XDP program of
// an open NIC, which lets everything pass that is not for its VIs.
type beside struct {
	Endpoint
	nic *vipl.NIC
}

func openBeside(open func(opening) (Endpoint, error)) func(opening) (Endpoint, error) {
	return func(o opening) (Endpoint, error) {
		nic, err := openNIC(o.Params)
		if err != nil {
			return nil, err
		}
		e, err := open(o)
		if err != nil {
			return nil, errors.Join(err, nic.Close())
		}
		return &beside{e, nic}, nil
	}
}

// Close, see Endpoint.
func (b *beside) Close() error { return errors.Join(b.Endpoint.Close(), b.nic.Close()) }
