package agentproto

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// Errors that only a daemon has.
var (
	// ErrQuota: the user has as much as the agent gives a user.
	ErrQuota = errors.New("the quota of this user is used up")
	// ErrQueueQuota is ErrQuota for queues: a program that has one may share it.
	ErrQueueQuota = fmt.Errorf("%w", ErrQuota)
	// ErrNotServed: the agent does not serve that interface to this user.
	ErrNotServed = errors.New("the agent does not serve this interface")
	// ErrDenied: the user may not use the agent.
	ErrDenied = fmt.Errorf("%w to use the agent", fs.ErrPermission)
	// ErrToken: the agent does not have the session.
	ErrToken = errors.New("the agent knows no such session")
	// ErrProtocol: the message is invalid.
	ErrProtocol = errors.New("the message breaks the protocol")
)

// codes are the errors that keep their identity in a message.
var codes = []struct {
	name string
	err  error
}{
	{"no-match", kagent.ErrNoMatch}, {"rejected", kagent.ErrRejected}, {"unreachable", kagent.ErrUnreachable},
	{"timeout", kagent.ErrTimeout}, {"cancelled", kagent.ErrCancelled}, {"vanished", kagent.ErrVanished},
	{"state", kagent.ErrState}, {"listening", kagent.ErrListening}, {"no-vi", kagent.ErrNoVI},
	{"queue-in-use", kagent.ErrQueueInUse}, {"closed", kagent.ErrClosed}, {"gone", kagent.ErrGone}, {"quota", ErrQuota},
	{"queue-quota", ErrQueueQuota},
	{"not-served", ErrNotServed}, {"denied", ErrDenied}, {"token", ErrToken}, {"protocol", ErrProtocol},
	{"context-canceled", context.Canceled}, {"context-deadline", context.DeadlineExceeded},
}

// Error is an error in a message. It unwraps to the errors that it represents: those of packages kagent and
// context, this package's, and error numbers.
type Error struct {
	Text        string        `json:"text"`
	Codes       []string      `json:"codes,omitempty"`
	Reason      wire.CMReason `json:"reason,omitempty"` // of a rejection
	Errno       unix.Errno    `json:"errno,omitempty"`
	Unavailable bool          `json:"unavailable,omitempty"` // kagent.Unavailable
}

// NewError converts an error for a message; nil gives nil.
func NewError(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Text: err.Error(), Unavailable: kagent.Unavailable(err)}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			e.Codes = append(e.Codes, c.name)
		}
	}
	var rejected *kagent.RejectedError
	if errors.As(err, &rejected) {
		e.Reason = rejected.Reason
	}
	_ = errors.As(err, &e.Errno)
	return e
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the errors that it represents.
func (e *Error) Unwrap() (all []error) {
	for _, name := range e.Codes {
		for _, c := range codes {
			switch {
			case c.name != name:
			case c.err == kagent.ErrRejected:
				all = append(all, &kagent.RejectedError{Reason: e.Reason})
			default:
				all = append(all, c.err)
			}
		}
	}
	if e.Errno != 0 {
		all = append(all, e.Errno)
	}
	return all
}

// CannotRun reports whether the agent's side lacks something that it needs; see
// kagent.Unavailable.
func (e *Error) CannotRun() bool { return e.Unavailable }
