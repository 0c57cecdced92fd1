//go:build cgo

package main

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"viaxdp/hugepages"
	"viaxdp/kagent"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// variable reads the environment of now: a program may set it before it opens a
// NIC.
func variable(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.getenv(c)) // nil gives ""
}

func verbose() bool { v := variable("VIA_VERBOSE"); return v != "" && v != "0" }

// room is what a program has for addresses, in bytes.
type room struct {
	host          int // longHost, or 0: what the NIC's own takes
	discriminator int // of a requester
}

// options of OpenNic by environment. docs/libvipl.md lists them.
func options() (opts []vipl.Option, has room, err error) {
	number := func(name string) (n int) {
		text := variable(name)
		if text == "" {
			return 0
		}
		n, e := strconv.Atoi(text)
		if (e != nil || n < 0) && err == nil {
			err = fmt.Errorf("$%s is %q: want a number", name, text)
		}
		return n
	}
	flag := func(name string, option func(bool) vipl.Option) {
		switch text := variable(name); text {
		case "":
		case "0", "1":
			opts = append(opts, option(text == "1"))
		default:
			err = fmt.Errorf("$%s is %q: want 0 or 1", name, text)
		}
	}
	if variable("VIA_QUEUE") != "" {
		opts = append(opts, vipl.WithQueue(number("VIA_QUEUE")))
	}
	if n := number("VIA_ARENA"); n > 0 {
		opts = append(opts, vipl.WithArena(n))
	}
	if rx, tx := number("VIA_RX_CHUNKS"), number("VIA_TX_CHUNKS"); rx+tx > 0 {
		opts = append(opts, vipl.WithChunks(rx, tx))
	}
	if n := number("VIA_SILENCE"); n > 0 {
		opts = append(opts, vipl.WithSilence(time.Duration(n)*time.Millisecond))
	}
	flag("VIA_MULTIBUFFER", vipl.WithMultiBuffer)
	flag("VIA_PACKING", vipl.WithPacking)
	flag("VIA_CHECKSUM", vipl.WithChecksum)
	flag("VIA_REST", vipl.WithRest)
	if text := variable("VIA_MODE"); text != "" {
		mode, e := xdpnic.ParseMode(text)
		if e != nil {
			return nil, has, fmt.Errorf("$VIA_MODE: %w", e)
		}
		opts = append(opts, vipl.WithMode(mode, mode != xdpnic.ModeAuto))
	}
	if text := variable("VIA_STEERING"); text != "" {
		how, e := kagent.ParseSteering(text)
		if e != nil {
			return nil, has, fmt.Errorf("$VIA_STEERING: %w", e)
		}
		opts = append(opts, vipl.WithSteering(how))
	}
	if file := variable("VIA_PSK"); file != "" {
		psk, e := readKey(file)
		if e != nil {
			return nil, has, fmt.Errorf("$VIA_PSK: %w", e)
		}
		opts = append(opts, vipl.WithPSK(psk))
	}
	switch text := variable("VIA_HUGEPAGES"); text {
	case "", hugepages.Auto.String():
	case hugepages.Require.String():
		opts = append(opts, vipl.WithHugepages(hugepages.Require))
	case hugepages.Avoid.String():
		opts = append(opts, vipl.WithHugepages(hugepages.Avoid))
	default:
		return nil, has, fmt.Errorf("$VIA_HUGEPAGES is %q: want auto, require or avoid", text)
	}
	has.discriminator = vipl.MaxDiscriminatorLen
	if text := variable("VIA_MAX_DISCRIMINATOR"); text != "" {
		if has.discriminator = number("VIA_MAX_DISCRIMINATOR"); has.discriminator > vipl.MaxDiscriminatorLen {
			return nil, has, fmt.Errorf("$VIA_MAX_DISCRIMINATOR is %q: want at most %d", text, vipl.MaxDiscriminatorLen)
		}
	}
	if text := variable("VIA_ADDRESS_LEN"); text != "" {
		if has.host = number("VIA_ADDRESS_LEN"); has.host != longHost {
			return nil, has, fmt.Errorf("$VIA_ADDRESS_LEN is %q: want %d, or nothing", text, longHost)
		}
	}
	return opts, has, err
}

// readKey makes a key of all bytes of a file.
func readKey(file string) (*vipl.PSK, error) {
	key, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	psk, err := vipl.NewPSK(key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return psk, nil
}
