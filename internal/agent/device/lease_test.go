package device

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/xdpnic"
)

// A queue that knows no frames of several chunks is taken without them, and one that
// refuses the mode is heard, although the one that was tried last is busy.
func TestReasonsOfAllQueues(t *testing.T) {
	opened := new(xdpnic.Queue)
	for _, c := range []struct {
		name  string
		multi bool
		first func(xdpnic.Config) error // of queue 0; queue 1 is busy
		want  error
	}{
		{"no multi-buffer", true, func(nic xdpnic.Config) error {
			if nic.MultiBuffer {
				return unix.EOPNOTSUPP
			}
			return nil
		}, nil},
		{"not even without", true, func(xdpnic.Config) error { return unix.EINVAL }, unix.EINVAL},
		{"refused", false, func(xdpnic.Config) error { return unix.EOPNOTSUPP }, unix.EOPNOTSUPP},
		{"busy", true, func(xdpnic.Config) error { return unix.EBUSY }, unix.EBUSY},
	} {
		var l lease
		err := l.openQueue(xdpnic.Config{MultiBuffer: c.multi}, []int{0, 1}, func(nic xdpnic.Config) (*xdpnic.Queue, error) {
			err := error(unix.EBUSY)
			if nic.QueueID == 0 {
				err = c.first(nic)
			}
			if err != nil {
				return nil, err
			}
			return opened, nil
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if c.want == nil && (l.queue != opened || l.queueID != 0) {
			t.Errorf("%s: queue %d", c.name, l.queueID)
		}
	}
}
