package xdpnic

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Mode is a data path between the NIC and the UMEM, best first. It depends on
// how this package binds the socket and how the caller attaches the XDP program.
//
//	mode       bind flag      program     frames are
//	zero-copy  XDP_ZEROCOPY   native      read and written by the NIC in the UMEM
//	native     XDP_COPY       native      copied once, in the driver's receive path
//	generic    XDP_COPY       generic     copied once, from the socket buffer; any interface
type Mode uint8

// The modes.
const (
	ModeAuto     Mode = iota // the best one that works
	ModeZeroCopy             // zero-copy, native program
	ModeNative               // copy, native program
	ModeGeneric              // copy, generic program
)

var modeNames = [...]string{"auto", "zero-copy", "native", "generic"}

// String returns the mode's name: auto, zero-copy, native or generic.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// ParseMode reads what String writes.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if s == name {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("xdpnic: mode %q: want one of %s", s, strings.Join(modeNames[:], ", "))
}

// Generic reports whether the program must be attached in generic mode.
func (m Mode) Generic() bool { return m == ModeGeneric }

// Attempt is one step of the ladder and its result.
type Attempt struct {
	Mode Mode
	Err  error // why the step was refused; nil for the one that was reached
}

// String returns the mode and why it was refused, or that it was reached.
func (a Attempt) String() string {
	if a.Err == nil {
		return a.Mode.String() + ": reached"
	}
	return fmt.Sprintf("%s: %v", a.Mode, a.Err)
}

// Ladder returns the modes to try in order, from the wanted one down; only that
// one if it is required.
func Ladder(want Mode, require bool) []Mode {
	steps := []Mode{ModeZeroCopy, ModeNative, ModeGeneric}
	if want > ModeGeneric {
		return nil
	}
	if want == ModeAuto {
		return steps
	}
	steps = steps[want-ModeZeroCopy:]
	if require {
		steps = steps[:1]
	}
	return steps
}

// Climb tries the steps of the ladder in order until one works. try attaches the
// program as the mode needs it and opens the queue with that mode required. If
// try fails it must undo what it did. Climb returns the mode that was reached and
// every attempt. If none works, its error gives the reason for each.
func Climb(want Mode, require bool, try func(Mode) error) (Mode, []Attempt, error) {
	var attempts []Attempt
	var errs []error
	for _, m := range Ladder(want, require) {
		err := try(m)
		attempts = append(attempts, Attempt{m, err})
		if err == nil {
			return m, attempts, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", m, err))
	}
	if len(errs) == 0 {
		return 0, nil, fmt.Errorf("xdpnic: unknown mode %s", want)
	}
	return 0, attempts, fmt.Errorf("xdpnic: no mode works: %w", errors.Join(errs...))
}

// bindSteps is the part of the ladder that bind(2) decides: it does not
// distinguish the copying modes.
func bindSteps(want Mode, require bool) []Mode {
	steps := Ladder(want, require)
	for i, m := range steps {
		if m != ModeZeroCopy {
			return steps[:i+1]
		}
	}
	return steps
}

// bindFlags are the flags of sockaddr_xdp for a mode. XDP_USE_NEED_WAKEUP is
// always set: it has no effect in the copying modes and saves kicks in zero-copy
// mode.
func bindFlags(m Mode, multiBuffer bool) uint16 {
	flags := uint16(unix.XDP_USE_NEED_WAKEUP | unix.XDP_COPY)
	if m == ModeZeroCopy {
		flags = unix.XDP_USE_NEED_WAKEUP | unix.XDP_ZEROCOPY
	}
	if multiBuffer {
		flags |= unix.XDP_USE_SG
	}
	return flags
}
