package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// A transport is one way to carry messages.
type transport struct {
	name    string
	summary string
	xdp     bool                   // over the pair for AF_XDP; else over the pair without any program
	sleeps  bool                   // blocks while it waits for messages; else it polls
	free    bool                   // the Go scheduler places its goroutine: it is locked to no thread
	whole   bool                   // its latency is that of a whole round trip, not of one way
	vi      bool                   // takes VIOptions
	rdma    bool                   // a VI whose messages are RDMA
	chains  bool                   // its frames may be longer than a chunk
	layer   bool                   // a layer above VIs
	open    func(opening) endpoint // fails by package fail, and then leaves nothing open
}

// transports are all of them, in the order of the report. The baselines come
// first.
var transports = slices.Concat([]transport{
	rawTransport("raw-afxdp", "frames on AF_XDP rings, no VI, polling", false, false),
	rawTransport("raw-afxdp-copy", "the same, the content copied out on arrival", false, true),
	rawTransport("raw-afxdp-wait", "raw-afxdp, sleeping in poll", true, false),
}, asavieTransports, []transport{
	viTransport("vi-unreliable", "VI, Unreliable Delivery, polling", openVI(vipl.UnreliableDelivery)),
	viTransport("vi-unreliable-wait", "the same, waiting", openVI(vipl.UnreliableDelivery)),
	viTransport("vi-reliable-delivery", "VI, Reliable Delivery, polling", openVI(vipl.ReliableDelivery)),
	viTransport("vi-no-segmentation", "the same, without segmentation offload: each frame alone", func(o opening) endpoint {
		o.VI.NoSegmentation = true
		return openVI(vipl.ReliableDelivery)(o)
	}),
	viTransport("vi-reliable-delivery-wait", "the same, waiting", openVI(vipl.ReliableDelivery)),
	viTransport("vi-reliable-reception", "VI, Reliable Reception, polling", openVI(vipl.ReliableReception)),
	viTransport("vi-reliable-reception-wait", "the same, waiting", openVI(vipl.ReliableReception)),
	rdmaTransport("vi-rdma-write", "RDMA writes, Reliable Delivery, polling memory", false, openRDMAWrite),
	rdmaTransport("vi-rdma-read", "RDMA reads, likewise; latency is a round trip: one read", true, openRDMARead),
	{name: "tcp-spin", summary: "TCP_NODELAY, non-blocking system calls in a loop", open: openTCP},
	{name: "tcp-block", sleeps: true, summary: "TCP_NODELAY, blocking system calls", open: openTCP},
	{name: "tcp-net", free: true, sleeps: true, summary: "TCP by package net",
		open: func(o opening) endpoint { return openNetStream(o, false) }},
	{name: "udp-spin", summary: "UDP, non-blocking system calls in a loop", open: openUDP},
	{name: "udp-block", sleeps: true, summary: "the same, sleeping in poll", open: openUDP},
	{name: "vianet", xdp: true, free: true, sleeps: true, layer: true, summary: "a net.Conn of package vianet",
		open: func(o opening) endpoint { return openNetStream(o, true) }},
})

// rawTransport is one of raw rings; copied: the content of a frame does not stay in the chunk.
func rawTransport(name, summary string, sleeps, copied bool) transport {
	return transport{name: name, summary: summary, sleeps: sleeps, xdp: true, chains: true, open: func(o opening) endpoint {
		f := o.framed(openRawXDP(o))
		if copied {
			f.into = make([]byte, o.MaxBytes)
		}
		return f
	}}
}

// viTransport is one of VIs; those whose names end in -wait sleep.
func viTransport(name, summary string, open func(opening) endpoint) transport {
	return transport{name: name, summary: summary, sleeps: strings.HasSuffix(name, "-wait"), xdp: true, vi: true, chains: true, open: open}
}

func rdmaTransport(name, summary string, whole bool, open func(opening) endpoint) transport {
	t := viTransport(name, summary, open)
	t.rdma, t.whole = true, whole
	return t
}

// An opening is what an endpoint is opened with.
type opening struct {
	Params
	ctx    context.Context // ends waits
	sleeps bool            // as the transport's
}

func (o opening) watch() watchdog { return watchdog{ctx: o.ctx, most: o.WaitLimit} }

func (o opening) framed(io frames) *framed {
	return &framed{io: io, sleeps: o.sleeps, watch: o.watch()}
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
func TakesVIOptions(name string) bool { return known(name).vi }

// Summary is one line about a transport; empty for an unknown name.
func Summary(name string) string { return known(name).summary }

// UsesXDP reports whether a transport opens AF_XDP sockets.
func UsesXDP(name string) bool { return known(name).xdp }

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
func RoundTrip(name string) bool { return known(name).whole }

// known is a transport by its name; an unknown one can do nothing.
func known(name string) transport {
	t, err := find(name)
	if err != nil {
		return transport{}
	}
	return *t
}

// openEndpoint opens one side of a transport. The end of ctx ends its waits.
func openEndpoint(ctx context.Context, name string, p Params) (e endpoint, err error) {
	defer fail.Catch(&err)
	t := fail.Must(find(name))
	if p.MaxBytes == 0 {
		p.MaxBytes = MaxMessage
	}
	if p.Mode == "" {
		p.Mode = "auto"
	}
	row := Row{Name: name, VI: p.VI, Beside: p.Beside}
	fail.If(row.validate())
	if row.usesXDP() && !t.vi && !t.layer { // a VI's NIC may be opened by an agent, and says what is missing
		fail.If(testbed.Require(testbed.Sockets, testbed.Programs))
	}
	err = fail.Try(func() {
		o := opening{p, ctx, t.sleeps}
		if !p.Beside {
			e = t.open(o)
			return
		}
		nic := fail.Must(openNIC(p))
		orClose(nic, func() { e = &beside{t.open(o), nic} })
	})
	if vipl.Unavailable(err) {
		err = testbed.CannotRun(err)
	}
	return e, err
}

// beside is a transport of the kernel on an interface with the XDP program of
// an open NIC, which lets everything pass that is not for its VIs.
type beside struct {
	endpoint
	nic *vipl.NIC
}

func (b *beside) Close() error { return errors.Join(b.endpoint.Close(), b.nic.Close()) }
