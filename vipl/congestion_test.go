package vipl_test

import (
	"errors"
	"testing"

	"viaxdp/vipl"
)

// A VI has the congestion control that it was created with, names round-trip, and unknown ones are refused.
func TestCongestionControl(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	for _, c := range []vipl.CongestionControl{vipl.CongestionDefault, vipl.CongestionDelay, vipl.CongestionCubic} {
		v := createVI(t, n.a.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery, Congestion: c}, nil, nil)
		info, err := v.Query()
		must(t, err)
		equal(t, "attribute", info.Attributes.Congestion, c)
		got, err := vipl.ParseCongestionControl(c.String())
		must(t, err)
		equal(t, "name", got, c)
	}
	for _, c := range []vipl.CongestionControl{-1, 3} {
		_, err := n.a.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Congestion: c}, nil, nil)
		errorIf(t, !errors.Is(err, vipl.ErrInvalidParameter), "%v: %v", c, err)
		_, err = vipl.ParseCongestionControl(c.String())
		errorIf(t, err == nil, "%v has been parsed", c)
	}
}
