package bench

import (
	"errors"

	"viaxdp/vipl"
)

// beside is a transport of the kernel on an interface with the XDP program of
// an open NIC, which lets everything pass that is not for its VIs.
type beside struct {
	Endpoint
	nic *vipl.Nic
}

func openBeside(open func(opening) (Endpoint, error)) func(opening) (Endpoint, error) {
	return func(o opening) (Endpoint, error) {
		nic, err := openNic(o.Params)
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
