package mvich

import (
	"errors"
	"fmt"
)

// What operations fail with. errors.Is works on everything this package returns.
var (
	// ErrTruncated: the message was longer than the buffer of the receive. The buffer holds its beginning, and Size
	// of the Status is its length.
	ErrTruncated = errors.New("mvich: message truncated: it is longer than the buffer")
	// ErrRank: no such rank in the communicator.
	ErrRank = errors.New("mvich: no such rank")
	// ErrTag: the tag is not 0 to MaxTag.
	ErrTag = errors.New("mvich: tags are 0 to 1<<30")
	// ErrCount: a message is longer than MaxMessage, or the buffers of a collective operation have the wrong length,
	// or not the length that other ranks gave.
	ErrCount = errors.New("mvich: wrong length")
	// ErrType: a type reaches beyond the slice that it is used with.
	ErrType = errors.New("mvich: the type reaches beyond the slice")
	// ErrFinalized: Finalize was called.
	ErrFinalized = errors.New("mvich: the world is finalized")
	// ErrMixed: requests that are waited for together are of several worlds.
	ErrMixed = errors.New("mvich: requests of several worlds")
	// ErrMemory: memory that Alloc has not returned.
	ErrMemory = errors.New("mvich: not memory of this world")
	// ErrBusy: a message uses the memory.
	ErrBusy = errors.New("mvich: the memory is in use: wait for its messages")
	// ErrProtocol: a peer sent what no peer sends.
	ErrProtocol = errors.New("mvich: protocol error")
	// ErrSettings: an option or an environment variable has a value that is not possible, or ranks have different
	// ones.
	ErrSettings = errors.New("mvich: wrong settings")

	errContexts = errors.New("mvich: this rank has made as many communicators as there can be")
	errLeft     = errors.New("it has left")
	errNoMatch  = errors.New("a message with the number of a request that is not there")
	errNoCredit = errors.New("a packet without a credit")
	errFull     = errors.New("more messages that nobody has asked for than it may send")
	errCredits  = errors.New("more credits than there are receives")
	errAnswers  = errors.New("more answers wait for its credits than it may ask for")
	errShort    = errors.New("a packet is shorter than it says")
	errFields   = errors.New("a packet has fields that make no sense")
)

// RankError: a rank has died, cannot be reached, or has left after another rank's death, which has the same effect.
// Operations that involve the rank fail with it. An operation that involves several lost ranks names the first. If
// the rank left because of another rank's death, and reported it, Err wraps that RankError.
type RankError struct {
	Rank int   // in the world; Comm.RankOf makes it one of a communicator
	Err  error // how it was noticed
}

// Error names the rank and the cause.
func (e *RankError) Error() string { return fmt.Sprintf("mvich: rank %d is lost: %v", e.Rank, e.Err) }

// Unwrap returns the cause.
func (e *RankError) Unwrap() error { return e.Err }
