package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// DefaultControlPort is the TCP port on which a server awaits a client.
const DefaultControlPort = 18515

// Place says where a host's endpoints are and how they run.
type Place struct {
	Interface string // of the AF_XDP transports; empty: the one with the address
	Queue     int    // of the interface
	Mode      string // how XDP is attached: "auto", "native", "generic"
	Steer     string `json:",omitempty"` // how the NIC is steered to the queue of a VI: "rules", "rss", "off"; empty: rules
	Hugepages bool   // memory on hugepages where there are any

	// Silence is the time after which a VI's peer is taken for dead; 0: DefaultSilence, or Params.WaitLimit
	// where that is longer.
	Silence time.Duration `json:",omitzero"`
}

func (p Place) apply(to *Params) {
	to.Place = p
	if p.Silence > 0 {
		to.WaitLimit = max(2*p.Silence, waitLimit)
	}
}

// check validates the place before this side waits for the other.
func (p Place) check() (err error) {
	defer fail.Catch(&err)
	fail.Must(xdpnic.ParseMode(cmp.Or(p.Mode, "auto")))
	if p.Steer != "" {
		fail.Must(vipl.ParseSteering(p.Steer))
	}
	if p.Interface == "" {
		return nil
	}
	ifi, err := net.InterfaceByName(p.Interface)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	switch {
	case err != nil:
		fail.With("interface %s: %w: ip link shows those of this network namespace", p.Interface, err)
	case ifi.Flags&net.FlagUp == 0:
		fail.With("interface %s is down: ip link set dev %[1]s up", p.Interface)
	}
	return nil
}

// ServerConfig of one side of a measurement between two hosts.
type ServerConfig struct {
	Place  Place
	Listen string // address; empty: all
	Port   int    // TCP port; 0: any
	Keep   bool   // go on after a client has left
	Ready  func(net.Addr)
	Failed func(error) // what went wrong with a client after which the server goes on; may be nil
}

// ListenAndServe awaits a client and does what it asks for: the transport, the
// sizes and the counts are the client's to choose, the place is not. It
// returns when the client has left, with an error if nothing could be opened at
// that place, or when ctx ends.
//
// A host that reaches the port can make this process send and receive; keep it off
// networks that are not trusted.
func ListenAndServe(ctx context.Context, cfg ServerConfig) (err error) {
	defer fail.Catch(&err)
	fail.If(cfg.Place.check())
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(cfg.Listen, strconv.Itoa(cfg.Port)))
	if errors.Is(err, unix.EADDRINUSE) {
		fail.With("%w (another server is there: end it, or take another port)", err)
	}
	fail.If(err)
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if cfg.Ready != nil {
		cfg.Ready(l.Addr())
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		asked, err := serveClient(ctx, conn, cfg.Place)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case asked && !cfg.Keep:
			return err
		case err != nil && cfg.Failed != nil:
			cfg.Failed(err)
		}
	}
}

// serveClient serves a connection. asked is false if it made no request: it was no client, but a scan, or the user's test
// whether the port can be reached.
func serveClient(ctx context.Context, conn net.Conn, place Place) (asked bool, err error) {
	defer fail.Catch(&err)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	local := addrOf(conn.LocalAddr())
	s := &server{prepare: func(p *Params) { // a server decides itself where its endpoints are
		p.Local, p.Server = local, true
		place.apply(p)
		p.Agent = "" // no path of this host is the client's to say
	}}
	err = s.serve(conn)
	return s.asked, cmp.Or(err, s.refused)
}

// ClientConfig of the other side.
type ClientConfig struct {
	Place  Place
	Server string // name or address of the server's host
	Port   int
	Plan   Plan
}

// dialTimeout bounds the connection to a server that does not answer.
const dialTimeout = 5 * time.Second

// A server that is started together with its client takes a moment to listen.
const (
	refusedFor   = 2 * time.Second // how long a client retries a port without a listener
	refusedPause = 20 * time.Millisecond
)

// reach retries to connect while the port has no listener, for as long as a server may take
// to start.
func reach(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	late := time.After(refusedFor)
	for {
		conn, err := dial(ctx)
		if !errors.Is(err, unix.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, err
		case <-time.After(refusedPause):
		}
	}
}

// Measure runs a plan between this process and a server.
func Measure(ctx context.Context, cfg ClientConfig) (_ *Result, err error) {
	defer fail.Catch(&err)
	fail.If(errors.Join(cfg.Plan.Validate(), cfg.Place.check()))
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := reach(ctx, func(ctx context.Context) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", net.JoinHostPort(cfg.Server, strconv.Itoa(cfg.Port)))
	})
	if err != nil {
		if _, unknown := errors.AsType[*net.DNSError](err); !unknown {
			err = fmt.Errorf("%w (is the server running there?)", err)
		}
		return nil, err
	}
	defer conn.Close()
	p := Params{Local: addrOf(conn.LocalAddr())}
	cfg.Place.apply(&p)

	// This side is a worker, too, in the same process.
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(theirs) }()
	defer func() {
		ours.Close()
		<-served
	}()
	stop := context.AfterFunc(ctx, func() {
		ours.Close()
		conn.Close()
	})
	defer stop()

	result, err := Run(ctx, cfg.Plan, NewWorker("client", ours, p), NewWorker("server", conn, Params{}))
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	if result.Conditions.Interface == "" {
		if ifi, err := p.netInterface(); err == nil {
			result.Conditions.Interface, result.Conditions.MTU = ifi.Name, ifi.MTU
		}
	}
	return result, nil
}

// addrOf is the address of a connection's end.
func addrOf(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	fail.Wrap(err, "address %s", a)
	addr := ap.Addr().Unmap()
	if addr.Zone() != "" {
		fail.With("address %s is link-local: use a global one", a)
	}
	return addr
}
