package bench

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"viaxdp/hugepages"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// vi is a Virtual Interface of package vipl, used as any program would use it:
// descriptors in registered memory, posted and polled or waited for.
//
// A message meets a posted receive, or it is lost (unreliable) or breaks the
// connection (reliable). So a round begins with a word in both directions that
// says that the receives are posted, and a stream's receiver says every quarter
// window how many more it has posted. Between rounds one receive without data
// is always posted, for the next word.
type vi struct {
	params Params
	sleeps bool
	watch  watch
	level  vipl.ReliabilityLevel
	write  bool // the peer may write to in
	read   bool // the peer may read out

	nic  *vipl.Nic
	ptag *vipl.Ptag
	vi   *vipl.VI

	descs        *vipl.Region        // all descriptors
	out, in      *vipl.Region        // data
	remote       vipl.AddressSegment // RDMA: the peer's in, or out
	sends, recvs ring
	payload      int // bytes of a message in one frame
	chunks       int // for frames that arrive

	round    Round
	credited int // messages of the round that the peer has room for
	data     int // messages that will come in the round
	left     int // receives of the round that are not posted yet, for data or words
}

// ring is a number of descriptors that are used in turn; a work queue
// completes them in order.
type ring struct {
	handle vipl.MemHandle
	descs  []*vipl.Descriptor
	posted int // since the start
	done   int
}

func (r *ring) next() *vipl.Descriptor { return r.descs[r.posted%len(r.descs)] }
func (r *ring) out() int               { return r.posted - r.done }

// Sizes of the rings in descriptors, and of the data that they may describe.
const (
	viRing      = 256
	viData      = 4 << 20
	viStream    = 1 << 20 // bytes of a stream under way
	viPingDepth = 4       // receives posted in a ping-pong
	viWords     = 8       // receives posted for words of a stream's receiver
)

// viDiscriminator names the benchmark's end of a connection.
var viDiscriminator = []byte("via-xdp bench")

func openVI(level vipl.ReliabilityLevel, sleeps bool) func(Params, *atomic.Bool) (Endpoint, error) {
	return func(p Params, stop *atomic.Bool) (Endpoint, error) {
		v := &vi{params: p, sleeps: sleeps, level: level, watch: watch{stop: stop}}
		return endpointOr(v, v.open())
	}
}

// open opens the NIC and makes what is needed of it, or leaves nothing open.
func (v *vi) open() error {
	if err := v.make(); err != nil {
		return errors.Join(err, v.Close())
	}
	return nil
}

func (v *vi) make() error {
	ifi, err := v.params.netInterface()
	if err != nil {
		return err
	}
	mode, err := xdpnic.ParseMode(v.params.Mode)
	if err != nil {
		return err
	}
	policy := hugepages.Avoid
	if v.params.Hugepages {
		policy = hugepages.Auto
	}
	v.chunks = ringChunks
	if v.level == vipl.UnreliableDelivery {
		// Nothing holds the sender back but what the receiver has room for: two
		// messages of the largest size, in frames of not much less than 1 KB.
		for v.chunks < 2*v.params.MaxBytes>>10 {
			v.chunks *= 2
		}
	}
	v.nic, err = vipl.OpenNic(ifi.Name,
		vipl.WithMode(mode, mode != xdpnic.ModeAuto),
		vipl.WithQueue(v.params.Queue),
		vipl.WithChunks(v.chunks, ringChunks),
		vipl.WithHugepages(policy))
	if err != nil {
		return err
	}
	if v.ptag, err = v.nic.CreatePtag(); err != nil {
		return err
	}
	attributes := vipl.MemAttributes{Ptag: v.ptag}
	if v.descs, err = v.nic.AllocMem(2*viRing*vipl.DescriptorAlignment, attributes); err != nil {
		return err
	}
	attributes.EnableRdmaRead = v.read
	if v.out, err = v.nic.AllocMem(viData, attributes); err != nil {
		return err
	}
	attributes.EnableRdmaRead, attributes.EnableRdmaWrite = false, v.write
	if v.in, err = v.nic.AllocMem(viData, attributes); err != nil {
		return err
	}
	for i, r := range []*ring{&v.sends, &v.recvs} {
		r.handle = v.descs.Handle()
		for j := range viRing {
			d, err := v.descs.Descriptor((i*viRing+j)*vipl.DescriptorAlignment, 2)
			if err != nil {
				return err
			}
			r.descs = append(r.descs, d)
		}
	}
	v.vi, err = v.nic.CreateVi(vipl.ViAttributes{
		Level: v.level, MaxTransferSize: v.params.MaxBytes, Ptag: v.ptag,
		EnableRdmaWrite: v.write, EnableRdmaRead: v.read,
	}, nil, nil)
	return err
}

func (v *vi) Hello() Hello {
	info := v.nic.Info()
	chunk := info.NIC.Rings.FrameSize - xdpnic.PacketHeadroom - info.NIC.Headroom
	var memory *vipl.AddressSegment
	switch {
	case v.write:
		m := v.in.Remote(0)
		memory = &m
	case v.read:
		m := v.out.Remote(0)
		memory = &m
	}
	return Hello{
		Addr: v.params.Local, Memory: memory,
		Facts: Facts{
			Interface: info.Interface, Mode: info.Mode.String(), Features: featureNames(info.NIC.Features),
			MTU: info.MTU, FrameBytes: min(info.MTU+ethernetHeader, chunk), Memory: info.Arena.Kind.String(),
		},
	}
}

// Connect, see Endpoint. A receive for the peer's first word is posted before.
func (v *vi) Connect(peer Hello) error {
	if v.write || v.read {
		if peer.Memory == nil {
			return errors.New("the peer has not said where its memory is")
		}
		v.remote = *peer.Memory
	}
	if err := v.postRecv(); err != nil {
		return err
	}
	local := vipl.NetAddress{Host: v.params.Local, Discriminator: viDiscriminator}
	if v.params.Server {
		c, err := v.nic.ConnectWait(local, patience)
		if err != nil {
			return err
		}
		if err := c.Accept(v.vi); err != nil {
			return err
		}
		return v.connected()
	}
	remote := vipl.NetAddress{Host: peer.Addr, Discriminator: viDiscriminator}
	for deadline := time.Now().Add(patience); ; {
		_, err := v.vi.ConnectRequest(local, remote, patience)
		// The server may not wait yet.
		if err == nil {
			return v.connected()
		}
		if !errors.Is(err, vipl.ErrNoMatch) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// connected notes what only a connection tells.
func (v *vi) connected() error {
	st, err := v.vi.Query()
	v.payload = st.MaxPayload
	return err
}

func (v *vi) Close() error {
	if v.nic == nil {
		return nil
	}
	var errs []error
	if v.vi != nil {
		errs = append(errs, v.vi.Disconnect())
	}
	errs = append(errs, v.nic.Close())
	v.nic, v.vi = nil, nil
	return errors.Join(errs...)
}

// fail adds to an error what the VI knows of its end.
func (v *vi) fail(doing string, d *vipl.Descriptor, err error) error {
	if d != nil {
		err = fmt.Errorf("%w: status %v", err, d.Status())
	}
	if st, qerr := v.vi.Query(); qerr == nil && st.Cause != nil {
		err = fmt.Errorf("%w; the VI is in state %v: %w", err, st.State, st.Cause)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
