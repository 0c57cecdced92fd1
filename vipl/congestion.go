package vipl

import "fmt"

// CongestionControl is how a reliable VI decides how much may be under way. The peer need not have the same.
type CongestionControl int

const (
	// CongestionDefault is that of WithCongestionControl, or else CongestionDelay.
	CongestionDefault CongestionControl = iota
	// CongestionDelay reacts to queueing delay and to ECN marks first, to losses if there is a queue, and as CUBIC beside
	// flows that keep the queue full. Random losses do not slow it down.
	CongestionDelay
	// CongestionCubic is CUBIC (RFC 9438): each round with a loss takes three tenths off the window, whatever the delay.
	// It also reacts to ECN marks. It is for networks in which VIs may not get more than TCP does, also where frames
	// are lost at random.
	CongestionCubic
)

var congestionNames = [...]string{"default", "delay", "cubic"}

func (c CongestionControl) valid() bool { return c >= 0 && int(c) < len(congestionNames) }

// String returns the name: default, delay or cubic.
func (c CongestionControl) String() string {
	if c.valid() {
		return congestionNames[c]
	}
	return fmt.Sprintf("CongestionControl(%d)", int(c))
}

// ParseCongestionControl returns the CongestionControl of a name.
func ParseCongestionControl(name string) (CongestionControl, error) {
	for i, n := range congestionNames {
		if n == name {
			return CongestionControl(i), nil
		}
	}
	return CongestionDefault, fmt.Errorf("congestion control %q: want default, delay or cubic", name)
}

// WithCongestionControl sets the congestion control of VIs that do not choose one.
func WithCongestionControl(c CongestionControl) Option { return func(o *options) { o.congestion = c } }
