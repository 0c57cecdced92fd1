//go:build cgo

package main

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unsafe"

	"viaxdp/hugepages"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// variable is the present value of an environment variable: a program may set it before it opens a
// NIC. In a setuid or setgid program it is "".
func variable(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.via_variable(c))
}

func verbose() bool { v := variable("VIA_VERBOSE"); return v != "" && v != "0" }

// room is what a program has for addresses, in bytes.
type room struct {
	host          int // longHost, or 0: what the NIC's own takes
	discriminator int // of a requester
}

// settings are options by variables of the environment. The first invalid value is the error.
type settings struct {
	opts []vipl.Option
	err  error
}

func (s *settings) wrong(err error) {
	if s.err == nil {
		s.err = err
	}
}

// number is the value of a variable, at most most; 0 if it is not set.
func (s *settings) number(name string, most int) int {
	text := variable(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	switch {
	case errors.Is(err, strconv.ErrRange) && n > 0 || err == nil && n > most:
		s.wrong(fmt.Errorf("$%s is %q: want at most %d", name, text, most))
		return 0
	case err != nil || n < 0:
		s.wrong(fmt.Errorf("$%s is %q: want a number, 0 to %d", name, text, most))
		return 0
	}
	return n
}

// Bounds beyond any machine's size or any wait; their sums and products do not overflow.
const (
	mostArena   = 1 << 40       // bytes
	mostChunks  = 1 << 24       // package xdpnic's
	mostSilence = math.MaxInt32 // milliseconds
)

// flag adds an option that is on or off.
func (s *settings) flag(name string, option func(bool) vipl.Option) {
	switch text := variable(name); text {
	case "":
	case "0", "1":
		s.opts = append(s.opts, option(text == "1"))
	default:
		s.wrong(fmt.Errorf("$%s is %q: want 0 or 1", name, text))
	}
}

// text adds the option that a word stands for.
func (s *settings) text(name string, option func(text string) (vipl.Option, error)) {
	text := variable(name)
	if text == "" {
		return
	}
	o, err := option(text)
	if err != nil {
		s.wrong(fmt.Errorf("$%s: %w", name, err))
		return
	}
	s.opts = append(s.opts, o)
}

// options of OpenNIC by environment. docs/libvipl.md lists them.
func options() ([]vipl.Option, room, error) {
	var s settings
	if variable("VIA_QUEUE") != "" {
		s.opts = append(s.opts, vipl.WithQueue(s.number("VIA_QUEUE", math.MaxInt32)))
	}
	if n := s.number("VIA_ARENA", mostArena); n > 0 {
		s.opts = append(s.opts, vipl.WithArena(n))
	}
	if rx, tx := s.number("VIA_RX_CHUNKS", mostChunks), s.number("VIA_TX_CHUNKS", mostChunks); rx+tx > 0 {
		s.opts = append(s.opts, vipl.WithChunks(rx, tx))
	}
	if n := s.number("VIA_SILENCE", mostSilence); n > 0 {
		s.opts = append(s.opts, vipl.WithSilence(time.Duration(n)*time.Millisecond))
	}
	s.flag("VIA_MULTIBUFFER", vipl.WithMultiBuffer)
	s.flag("VIA_SEGMENTATION", vipl.WithSegmentation)
	s.flag("VIA_HEADROOM", vipl.WithHeadroom)
	s.flag("VIA_PACKING", vipl.WithPacking)
	s.flag("VIA_CHECKSUM", vipl.WithChecksum)
	s.flag("VIA_POLL_PAUSE", vipl.WithPollPause)
	s.text("VIA_MODE", func(text string) (vipl.Option, error) {
		mode, err := xdpnic.ParseMode(text)
		return vipl.WithMode(mode, mode != xdpnic.ModeAuto), err
	})
	s.text("VIA_STEERING", func(text string) (vipl.Option, error) {
		how, err := vipl.ParseSteering(text)
		return vipl.WithSteering(how), err
	})
	s.text("VIA_CONGESTION", func(text string) (vipl.Option, error) {
		how, err := vipl.ParseCongestionControl(text)
		return vipl.WithCongestionControl(how), err
	})
	s.text("VIA_PSK", func(file string) (vipl.Option, error) {
		psk, err := vipl.ReadPSK(file)
		return vipl.WithPSK(psk), err
	})
	s.text("VIA_HUGEPAGES", func(text string) (vipl.Option, error) {
		for _, p := range []hugepages.Policy{hugepages.Auto, hugepages.Require, hugepages.Avoid} {
			if text == p.String() {
				return vipl.WithHugepages(p), nil
			}
		}
		return nil, fmt.Errorf("%q: want auto, require or avoid", text)
	})
	has := s.room()
	return s.opts, has, s.err
}

// room is what the environment says of the program's.
func (s *settings) room() room {
	has := room{discriminator: vipl.MaxDiscriminatorLen}
	if variable("VIA_MAX_DISCRIMINATOR") != "" {
		has.discriminator = s.number("VIA_MAX_DISCRIMINATOR", vipl.MaxDiscriminatorLen)
	}
	if text := variable("VIA_ADDRESS_LEN"); text != "" {
		if has.host = s.number("VIA_ADDRESS_LEN", longHost); has.host != longHost {
			s.wrong(fmt.Errorf("$VIA_ADDRESS_LEN is %q: want %d, or nothing", text, longHost))
		}
	}
	return has
}
