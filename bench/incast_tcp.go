package bench

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// incastTCP is a sender's stream over the kernel's TCP.
type incastTCP struct {
	*tcp
	message []byte
}

func openIncastTCP(j *job, in incastInput) (incastSender, error) {
	p := j.params
	p.MaxBytes = in.Bytes
	t, err := openTCP(p, watchdog{stop: j.stop, most: incastPatience}, true)
	if err != nil {
		return nil, err
	}
	s := &incastTCP{tcp: t, message: make([]byte, in.Bytes)}
	err = t.Connect(Hello{Addr: in.Receiver, Port: incastData})
	if err == nil {
		err = t.write([]byte{byte(in.Number)})
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *incastTCP) send(number uint64) error {
	if number < incastCheck {
		copy(s.message, content(int(number), 0, len(s.message)))
	}
	return s.write(s.message)
}

func (s *incastTCP) finish() (frames, resent, dropped uint64, err error) {
	if err := unix.Shutdown(s.fd, unix.SHUT_WR); err != nil {
		return 0, 0, 0, err
	}
	// The receiver does so when it has everything.
	switch _, err := s.read(make([]byte, 1)); {
	case err == nil:
		return 0, 0, 0, errors.New("the receiver has sent something")
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return 0, 0, 0, err
	}
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, 0, 0, err
	}
	return uint64(info.Segs_out), uint64(info.Total_retrans), 0, nil
}

func (s *incastTCP) close() error { return s.Close() }

// incastTCPs are the streams of all senders as the receiver has them.
type incastTCPs struct {
	listener *tcp
	streams  []*incastPart
	polled   []unix.PollFd
	ready    []int // streams that poll has found something of
	ending   bool
	watch    watchdog
}

// incastPart is a stream and the part of a message that has come of it.
type incastPart struct {
	fd      int
	message []byte
	filled  int
	gone    bool
}

func takeIncastTCP(j *job, in incastInput) (incastReceiver, error) {
	p := j.params
	p.Server, p.Port, p.MaxBytes = true, incastData, in.Bytes
	t, err := openTCP(p, watchdog{}, true)
	if err != nil {
		return nil, err
	}
	r := &incastTCPs{listener: t, watch: watchdog{stop: j.stop, most: incastPatience}}
	for range in.Senders {
		r.streams = append(r.streams, &incastPart{fd: -1, message: make([]byte, in.Bytes)})
	}
	if err := unix.Listen(t.listener, in.Senders); err != nil { // more than openTCP does
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *incastTCPs) connect() error {
	for range r.streams {
		fd, err := acceptWithin(r.listener.listener, incastPatience)
		if err != nil {
			return err
		}
		// Blocking, as its first byte comes with the connection.
		number := make([]byte, 1)
		tv := unix.NsecToTimeval(int64(incastPatience))
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err == nil {
			_, err = unix.Read(fd, number)
		}
		if i := int(number[0]); err != nil || i >= len(r.streams) || r.streams[i].fd >= 0 {
			return errors.Join(err, unix.Close(fd), errors.New("a stream has not said whose it is"))
		} else {
			r.streams[i].fd = fd
		}
	}
	return nil
}

func (r *incastTCPs) next() (int, []byte, error) {
	if len(r.ready) == 0 {
		if err := r.poll(); err != nil || len(r.ready) == 0 {
			return -1, nil, err
		}
	}
	i := r.ready[0]
	r.ready = r.ready[1:]
	s := r.streams[i]
	if s.filled == len(s.message) {
		s.filled = 0
	}
	n, err := unix.Read(s.fd, s.message[s.filled:])
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return -1, nil, nil
	case err != nil:
		return -1, nil, fmt.Errorf("receive from sender %d: %w", i, err)
	case n == 0:
		return -1, nil, r.ended(i)
	}
	r.watch.progress()
	if s.filled += n; s.filled < len(s.message) {
		return -1, nil, nil
	}
	return i, s.message, nil
}

// ended takes the end of a stream.
func (r *incastTCPs) ended(i int) error {
	s := r.streams[i]
	if !r.ending || s.filled%len(s.message) != 0 {
		return fmt.Errorf("sender %d has ended its stream, %d bytes into a message", i, s.filled)
	}
	s.gone = true
	return unix.Shutdown(s.fd, unix.SHUT_WR)
}

// poll waits for something of any stream.
func (r *incastTCPs) poll() error {
	r.polled, r.ready = r.polled[:0], r.ready[:0]
	for _, s := range r.streams {
		fd := int32(s.fd)
		if s.gone {
			fd = -1 // poll(2) ignores it
		}
		r.polled = append(r.polled, unix.PollFd{Fd: fd, Events: unix.POLLIN})
	}
	_, err := unix.Poll(r.polled, int(maxSleep/time.Millisecond))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	for i := range r.polled {
		if err == nil && r.polled[i].Revents != 0 {
			r.ready = append(r.ready, i)
		}
	}
	if len(r.ready) == 0 {
		return r.watch.blocked()
	}
	return nil
}

func (r *incastTCPs) end() { r.ending = true }

func (r *incastTCPs) count(uint64) (seen, dropped, unnamed uint64) { return 0, 0, 0 }

func (r *incastTCPs) facts() Facts { return Facts{} }

func (r *incastTCPs) close() error {
	for _, s := range r.streams {
		if s.fd >= 0 {
			unix.Close(s.fd)
			s.fd = -1
		}
	}
	return r.listener.Close()
}
