package bench

import (
	"errors"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// opsDiscriminator names the end that is connected with for the time that it
// takes.
var opsDiscriminator = []byte("via-xdp bench connections")

// connectInput is the input of both sides.
type connectInput struct {
	Count  int
	Server netip.Addr
}

// connector is one side: a VI of its own on the NIC of the endpoint, whose
// connection stays beside it.
type connector struct {
	job  *job
	nic  *vipl.Nic
	host netip.Addr // of this side
	vi   *vipl.VI
	desc *vipl.Descriptor // of a receive, by which the server hears of the end
	mem  *vipl.Region
}

func newConnector(j *job, in connectInput) (*connector, error) {
	if err := checkCount(in.Count); err != nil {
		return nil, err
	}
	e, ok := j.endpoint.(*vi)
	if !ok {
		return nil, errors.New("this transport has no connections to count: take a VI that sends and receives")
	}
	c := &connector{job: j, nic: e.nic, host: e.params.Local}
	if err := c.make(e.ptag); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *connector) make(tag *vipl.Ptag) (err error) {
	if c.mem, err = c.nic.AllocMem(vipl.DescriptorAlignment, vipl.MemAttributes{Ptag: tag}); err != nil {
		return err
	}
	if c.desc, err = c.mem.Descriptor(0, 1); err != nil {
		return err
	}
	c.vi, err = c.nic.CreateVi(vipl.ViAttributes{
		Level: vipl.ReliableDelivery, MaxTransferSize: MaxMessage, Ptag: tag,
	}, nil, nil)
	return err
}

// close gives the VI and its memory back.
func (c *connector) close() error {
	var errs []error
	if c.vi != nil {
		errs = append(errs, c.vi.Disconnect(), c.vi.Destroy())
	}
	if c.mem != nil {
		errs = append(errs, c.mem.Deregister())
	}
	return errors.Join(errs...)
}

func (c *connector) stopped() bool { return c.job.stop.Load() }

func (c *connector) address() vipl.NetAddress {
	return vipl.NetAddress{Host: c.host, Discriminator: opsDiscriminator}
}

// connectOften is a task: the client's side, which keeps the times.
func connectOften(j *job, in connectInput) (out operated, err error) {
	c, err := newConnector(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	t := newTimings(j.stop)
	connects, disconnects := t.of(OpConnect, 0), t.of(OpDisconnect, 0)
	for range in.Count {
		start, err := c.connect(in.Server)
		if err == nil {
			err = connects.add(start)
		}
		if err != nil {
			return out, err
		}
		start = time.Now()
		if err = c.vi.Disconnect(); err == nil {
			err = disconnects.add(start)
		}
		if err != nil {
			return out, err
		}
	}
	return t.output()
}

// connect returns when the request began that was answered: as long as the
// server does not wait yet, they are refused.
func (c *connector) connect(server netip.Addr) (start time.Time, err error) {
	remote := vipl.NetAddress{Host: server, Discriminator: opsDiscriminator}
	for deadline := time.Now().Add(patience); ; {
		start = time.Now()
		_, err = c.vi.ConnectRequest(c.address(), remote, patience)
		switch {
		case err == nil:
			return start, nil
		case c.stopped():
			return start, ErrStopped
		case !errors.Is(err, vipl.ErrNoMatch) || start.After(deadline):
			return start, err
		}
		time.Sleep(connectPause)
	}
}

// acceptOften is a task: the server's side.
func acceptOften(j *job, in connectInput) (out struct{}, err error) {
	c, err := newConnector(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	// Each connection ends by the peer, which is nothing to be logged.
	c.nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	defer c.nic.ErrorCallback(nil)
	for range in.Count {
		if err := c.accept(); err != nil {
			return out, err
		}
	}
	return out, nil
}

// accept takes one connection and awaits its end.
func (c *connector) accept() error {
	in, err := c.wait()
	if err != nil {
		return err
	}
	// It never gets a message: it comes back when the connection has ended.
	c.desc.SetSegments()
	if err := c.vi.PostRecv(c.desc, c.mem.Handle()); err != nil {
		return err
	}
	if err := in.Accept(c.vi); err != nil {
		return err
	}
	for {
		_, err := c.vi.RecvWait(maxSleep)
		switch {
		case errors.Is(err, vipl.ErrTimeout) && !c.stopped():
			continue
		case errors.Is(err, vipl.ErrTimeout):
			return ErrStopped
		case err == nil:
			return errors.New("a message came over a connection that carries none")
		case !errors.Is(err, vipl.ErrDescriptor):
			return err
		}
		return c.vi.Disconnect()
	}
}

// wait awaits the next request.
func (c *connector) wait() (*vipl.Conn, error) {
	for deadline := time.Now().Add(patience); ; {
		in, err := c.nic.ConnectWait(c.address(), maxSleep)
		switch {
		case err == nil:
			return in, nil
		case c.stopped():
			return nil, ErrStopped
		case !errors.Is(err, vipl.ErrTimeout) || time.Now().After(deadline):
			return nil, err
		}
	}
}
