package bench

import (
	"errors"
	"fmt"

	"viaxdp/vipl"
)

// VIOptions say how a VI is used otherwise than usually. The zero value is the
// usual way: one VI, one data segment, work queues polled or waited for.
type VIOptions struct {
	CQ     bool `json:"cq,omitempty"`     // both work queues are bound to one completion queue, and completions dequeued there
	Notify bool `json:"notify,omitempty"` // completions are handed over by SendNotify and RecvNotify handlers
	VIs    int  `json:"vis,omitempty"`    // VIs that are open and connected, one of which carries the messages; 0: 1

	Segments    int  `json:"segments,omitempty"`     // data segments of each descriptor with data; 0: 1
	Reuse       *int `json:"reuse,omitempty"`        // percent of messages sent from and received into one buffer, the others at fresh places of a large region; nil: all
	Register    bool `json:"register,omitempty"`     // data in memory of the program that is registered, not in the NIC's arena
	MaxTransfer int  `json:"max_transfer,omitempty"` // MaxTransferSize of the VI; 0: the largest message

	Engine   bool `json:"engine,omitempty"`     // a goroutine of its own polls, the one that is measured looks at descriptors
	OneByOne bool `json:"one_by_one,omitempty"` // a stream posts a send when the one before is complete

	List int `json:"list,omitempty"` // descriptors of a stream that are posted and taken off together (perftest's --post_list); 0: 16, 1: one by one

	NoPacking     bool `json:"no_packing,omitempty"`      // a frame and a doorbell for each message
	NoChecksum    bool `json:"no_checksum,omitempty"`     // checksums of headers alone
	Sealed        bool `json:"sealed,omitempty"`          // authenticated and encrypted by a pre-shared key
	NoRest        bool `json:"no_rest,omitempty"`         // polls look at the RX ring in streams, too
	NoMultiBuffer bool `json:"no_multi_buffer,omitempty"` // frames of one chunk, into which everything is copied; of raw-afxdp, too

	Agent bool `json:"agent,omitempty"` // the NIC is opened by an agent (Params.Agent), not by the process itself
}

// MaxVIs is the largest number of VIs that an endpoint opens.
const MaxVIs = 4096

// validate refuses what cannot be or what the transport cannot do.
func (o VIOptions) validate(t *transport) error {
	others := o
	others.NoMultiBuffer = false
	switch {
	case !t.vi && others != (VIOptions{}), !t.chains && o.NoMultiBuffer:
		return fmt.Errorf("%s has no such options", t.name)
	case o.VIs < 0 || o.VIs > MaxVIs:
		return fmt.Errorf("%d VIs: 1 to %d can be open", o.VIs, MaxVIs)
	case o.Segments < 0 || o.Segments > vipl.MaxSegments:
		return fmt.Errorf("%d segments: a descriptor has 1 to %d", o.Segments, vipl.MaxSegments)
	case o.Reuse != nil && (*o.Reuse < 0 || *o.Reuse > 100):
		return fmt.Errorf("reuse of %d %%: 0 to 100", *o.Reuse)
	case o.List < 0 || o.List > viList:
		return fmt.Errorf("lists of %d descriptors: 1 to %d", o.List, viList)
	case o.MaxTransfer < 0 || o.MaxTransfer > vipl.MaxTransferSize:
		return fmt.Errorf("MaxTransferSize %d: 1 to %d", o.MaxTransfer, vipl.MaxTransferSize)
	case o.CQ && o.Notify || o.CQ && o.Engine || o.Notify && o.Engine:
		return errors.New("completions are found in one way: a completion queue, handlers, or an engine goroutine")
	case t.sleeps && (o.Notify || o.Engine):
		return errors.New("a transport that waits has neither handlers nor an engine goroutine")
	case t.rdma && (o.Notify || o.Engine || o.Reuse != nil):
		return errors.New("handlers, an engine goroutine and the reuse of buffers are for send and receive, not for RDMA")
	}
	return nil
}

// nicOptions are those with which the NIC is opened.
func (o VIOptions) nicOptions() []vipl.Option {
	options := []vipl.Option{
		vipl.WithPacking(!o.NoPacking), vipl.WithChecksum(!o.NoChecksum), vipl.WithMultiBuffer(!o.NoMultiBuffer),
		vipl.WithRest(!o.NoRest),
	}
	if o.Sealed {
		options = append(options, vipl.WithPSK(benchPSK()))
	}
	if o.Reuse != nil {
		options = append(options, vipl.WithArena(viReuseArena))
	}
	return options
}

// benchPSK is the key of both ends, which is no secret: what it costs is measured.
func benchPSK() *vipl.PSK {
	psk, err := vipl.NewPSK([]byte("the pre-shared key of the benchmark"))
	if err != nil {
		panic(err) // of a constant: it is long enough
	}
	return psk
}
