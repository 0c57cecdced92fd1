package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Sizes of an incast.
const (
	incastDepth = 16 // messages of a sender under way, at most
	incastCheck = 8  // first messages of a sender whose every byte is checked
)

// incastPort is where the receiver says when it is over, incastData where it takes streams of TCP.
const (
	incastPort = 8081
	incastData = 8082
)

// An incastSender is one stream as its sender has it.
type incastSender interface {
	// send sends the message of a number, sooner or later.
	send(number uint64) error
	// finish ends the stream, all of which has come: how many frames there were, how many of
	// them were sent again, and how many the sender's kernel has named as lost.
	finish() (frames, resent, dropped uint64, err error)
	close() error
}

// An incastReceiver is all streams as their receiver has them.
type incastReceiver interface {
	// connect takes the streams of all senders.
	connect() error
	// next returns a message that has come, and its sender; -1: none has for a while. The
	// message is there until the next call.
	next() (from int, message []byte, err error)
	// end says that streams may end from now on.
	end()
	// count says, after so many frames were sent and all streams have ended, how many came,
	// how many of them were dropped by name, and how many without one.
	count(sent uint64) (seen, dropped, unnamed uint64)
	facts() Facts
	close() error
}

// incastPatience is how long one side waits for another, which may be opening its interface
// beside several others. Who fails ends the rest, too.
const incastPatience = 6 * patience

// incastLimit bounds all waits of the words between the two sides.
func incastLimit(in incastInput) time.Time { return time.Now().Add(in.Duration + 3*incastPatience) }

// sendIncast is a task: a sender, until the receiver says that it is over.
func sendIncast(j *job, in incastInput) (out incastSent, err error) {
	if err := in.validate(); err != nil {
		return out, err
	}
	word, err := dialIncast(j, in)
	if err != nil {
		return out, err
	}
	defer word.Close()
	open := openIncastVI
	if in.TCP {
		open = openIncastTCP
	}
	s, err := open(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var told atomic.Bool
	heard := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(word, make([]byte, 1))
		told.Store(true)
		heard <- err
	}()
	for ; !told.Load(); out.Messages++ {
		if j.stop.Load() {
			return out, ErrStopped
		}
		if err := s.send(out.Messages); err != nil {
			return out, err
		}
	}
	if err := <-heard; err != nil {
		return out, fmt.Errorf("the receiver has gone: %w", err)
	}
	// That sends are complete does not say that messages have come: the receiver does.
	words := json.NewEncoder(word)
	if err := words.Encode(out); err != nil {
		return out, err
	}
	if _, err := io.ReadFull(word, make([]byte, 1)); err != nil {
		return out, fmt.Errorf("the receiver has not got all of %d messages: %w", out.Messages, err)
	}
	if out.Frames, out.Resent, out.Dropped, err = s.finish(); err != nil {
		return out, err
	}
	if err := words.Encode(out); err != nil {
		return out, err
	}
	_, err = io.Copy(io.Discard, word) // until it has counted
	return out, err
}

// dialIncast connects with a receiver, which may not listen yet.
func dialIncast(j *job, in incastInput) (net.Conn, error) {
	for end := time.Now().Add(incastPatience); ; time.Sleep(connectPause) {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(in.Receiver, incastPort).String(), patience)
		switch {
		case err == nil:
			_, err = c.Write([]byte{byte(in.Number)})
			return c, errors.Join(err, c.SetDeadline(incastLimit(in)))
		case j.stop.Load():
			return nil, ErrStopped
		case time.Now().After(end):
			return nil, err
		}
	}
}

// takeIncast is a task: the receiver.
func takeIncast(j *job, in incastInput) (out incastTaken, err error) {
	if err := in.validate(); err != nil {
		return out, err
	}
	take := takeIncastVI
	if in.TCP {
		take = takeIncastTCP
	}
	r, err := take(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	words, err := acceptIncast(in)
	if err != nil {
		return out, err
	}
	defer func() {
		for _, w := range words {
			w.Close()
		}
	}()
	if err := r.connect(); err != nil {
		return out, err
	}
	t := &incastTaker{job: j, r: r, d: in.Duration, came: make([]int64, in.Senders)}
	if out.Messages, out.Span, err = t.window(); err != nil {
		return out, err
	}
	r.end()
	sent, err := t.rest(words)
	if err != nil {
		return out, err
	}
	out.Seen, out.Dropped, out.Unnamed = r.count(sent)
	out.Facts = r.facts()
	return out, nil
}

// acceptIncast takes the word connections of all senders.
func acceptIncast(in incastInput) (words []net.Conn, err error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(in.Receiver, incastPort)))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	words = make([]net.Conn, in.Senders)
	defer func() {
		if err != nil {
			for _, w := range words {
				if w != nil {
					w.Close()
				}
			}
		}
	}()
	if err := l.SetDeadline(incastLimit(in)); err != nil {
		return nil, err
	}
	for range words {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		number := make([]byte, 1)
		if err = c.SetDeadline(incastLimit(in)); err == nil {
			_, err = io.ReadFull(c, number)
		}
		if i := int(number[0]); err != nil || i >= len(words) || words[i] != nil {
			return nil, errors.Join(err, c.Close(), errors.New("a sender has not said which one it is"))
		} else {
			words[i] = c
		}
	}
	return words, nil
}

// incastTaker takes messages and counts them.
type incastTaker struct {
	job  *job
	r    incastReceiver
	d    time.Duration
	came []int64 // of each sender
}

// next takes a message, if there is one.
func (t *incastTaker) next() error {
	if t.job.stop.Load() {
		return ErrStopped
	}
	from, message, err := t.r.next()
	if err != nil || from < 0 {
		return err
	}
	if n := t.came[from]; n < incastCheck {
		if err := verify(int(n), 0, message); err != nil {
			return fmt.Errorf("sender %d: %w", from, err)
		}
	}
	t.came[from]++
	return nil
}

// window counts the messages of a time that begins some time after every sender has begun.
// A sender that got no CPU has its time all the same.
func (t *incastTaker) window() (messages []int64, span Span, err error) {
	for end := time.Now().Add(incastPatience); slices.Min(t.came) < incastCheck; {
		if err := t.next(); err != nil {
			return nil, span, err
		}
		if time.Now().After(end) {
			return nil, span, fmt.Errorf("a sender has hardly begun within %v: messages %d", incastPatience, t.came)
		}
	}
	for end := time.Now().Add(t.d / warmPart); time.Now().Before(end); {
		if err := t.next(); err != nil {
			return nil, span, err
		}
	}
	before, clock := slices.Clone(t.came), startStopwatch()
	messages = make([]int64, len(before))
	for {
		if err := t.next(); err != nil {
			return nil, span, err
		}
		for i, n := range t.came {
			messages[i] = n - before[i]
		}
		if lasted := time.Since(clock.wall); lasted >= t.d && slices.Min(messages) > 0 || lasted > t.d+patience {
			return messages, clock.span(), nil
		}
	}
}

// rest says that it is over, takes what is still on its way, and says when it has all of a sender.
// It returns how many frames the senders have sent.
func (t *incastTaker) rest(words []net.Conn) (frames uint64, err error) {
	type said struct {
		from, times int
		incastSent
		err error
	}
	heard := make(chan said, 2*len(words)) // of each how many messages there are, and then of the frames
	for i, w := range words {
		if _, err := w.Write([]byte{0}); err != nil {
			return 0, err
		}
		go func() {
			in := json.NewDecoder(w)
			for times := 1; times <= 2; times++ {
				x := said{from: i, times: times}
				x.err = in.Decode(&x.incastSent)
				if heard <- x; x.err != nil {
					return
				}
			}
		}()
	}
	for left := len(words); left > 0; {
		select {
		case x := <-heard:
			switch {
			case x.err != nil:
				return 0, fmt.Errorf("sender %d has gone: %w", x.from, x.err)
			case x.times == 2:
				frames += x.Frames - x.Dropped
				left--
				continue
			}
			for t.came[x.from] < int64(x.Messages) {
				if err := t.next(); err != nil {
					return 0, fmt.Errorf("of %d messages of sender %d %d came: %w", x.Messages, x.from, t.came[x.from], err)
				}
			}
			if n := t.came[x.from]; n > int64(x.Messages) {
				return 0, fmt.Errorf("sender %d has sent %d messages, and %d came", x.from, x.Messages, n)
			}
			if _, err := words[x.from].Write([]byte{0}); err != nil {
				return 0, err
			}
		default:
			if err := t.next(); err != nil {
				return 0, err
			}
		}
	}
	return frames, nil
}
