package fabric

import "math"

// TCPAlgorithm is the congestion control of a flow.
type TCPAlgorithm int

// Cubic is RFC 9438 without ECN, DCTCP is RFC 8257, BBR is its first version.
const (
	Cubic TCPAlgorithm = iota
	DCTCP
	BBR
)

func (a TCPAlgorithm) String() string { return [...]string{"CUBIC", "DCTCP", "BBR"}[a] }

func (a TCPAlgorithm) control() tcpControl {
	switch a {
	case DCTCP:
		return &dctcp{ssth: math.Inf(1), alpha: 1}
	case BBR:
		return &bbr{}
	}
	return &cubic{ssth: math.Inf(1)}
}

// tcpControl sets the window of a flow.
type tcpControl interface {
	acked(f *TCP, arrived int, mark bool) // packets that an acknowledgement has shown
	lost(f *TCP)                          // the first loss of a round, or a timeout
	rate() float64                        // packets/s that may leave; 0: what the window allows
}

// unpaced is part of a control that has only a window.
type unpaced struct{}

func (unpaced) rate() float64 { return 0 }

const (
	cubicC    = 0.4
	cubicBeta = 0.7
	dctcpGain = 1. / 16
)

// cubic is RFC 9438.
type cubic struct {
	unpaced
	ssth          float64
	wMax, k, wEst float64
	epoch         int64
}

func (c *cubic) lost(f *TCP) {
	if f.cwnd < c.wMax {
		c.wMax = f.cwnd * (1 + cubicBeta) / 2
	} else {
		c.wMax = f.cwnd
	}
	f.cwnd = max(f.cwnd*cubicBeta, 2)
	c.ssth = f.cwnd
	c.epoch = 0
}

func (c *cubic) acked(f *TCP, arrived int, _ bool) {
	n := float64(arrived)
	switch {
	case n == 0 || f.una < f.recovery:
		return
	case f.cwnd < c.ssth:
		f.cwnd += n
		return
	}
	if c.epoch == 0 {
		c.epoch = f.sim.now
		c.wMax = max(c.wMax, f.cwnd)
		c.k = math.Cbrt((c.wMax - f.cwnd) / cubicC)
		c.wEst = f.cwnd
	}
	t := (float64(f.sim.now-c.epoch) + f.srtt) / Second
	target := min(max(cubicC*math.Pow(t-c.k, 3)+c.wMax, f.cwnd), 1.5*f.cwnd)
	c.wEst += 3 * (1 - cubicBeta) / (1 + cubicBeta) * n / f.cwnd
	f.cwnd += (target - f.cwnd) / f.cwnd * n
	f.cwnd = max(f.cwnd, c.wEst)
}

// dctcp is RFC 8257.
type dctcp struct {
	unpaced
	ssth            float64
	alpha           float64
	arrived, marked int
	windowEnd, cwnr int64
}

func (c *dctcp) lost(f *TCP) {
	f.cwnd = max(f.cwnd/2, 2)
	c.ssth = f.cwnd
}

func (c *dctcp) acked(f *TCP, arrived int, mark bool) {
	n := float64(arrived)
	switch {
	case n == 0 || f.una < f.recovery:
	case f.cwnd < c.ssth:
		f.cwnd += n
	default:
		f.cwnd += n / f.cwnd
	}
	c.arrived += arrived
	if mark {
		c.marked += arrived
		if f.una >= c.cwnr {
			f.cwnd = max(f.cwnd*(1-c.alpha/2), 2)
			c.ssth = f.cwnd
			c.cwnr = f.nxt
		}
	}
	if f.una >= c.windowEnd && c.arrived > 0 {
		c.alpha += (float64(c.marked)/float64(c.arrived) - c.alpha) * dctcpGain
		c.arrived, c.marked, c.windowEnd = 0, 0, f.nxt
	}
}
