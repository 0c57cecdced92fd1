//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"viaxdp/internal/lag"
)

// looker tells of a step that has failed, or is about to be killed, what may be the
// reason: somebody has counted the frame that is missing, the NIC's driver, the demux
// program, the socket or the engine; or the guest had no processor.
type looker struct {
	nics  int
	meter *lag.Meter
}

// look is about a step that began at since.
func (l *looker) look(since lag.Mark) string {
	return fmt.Sprintf("late by %v in %v, %v of it in one second\n%s%s",
		since.Allow(0).Round(time.Millisecond), time.Since(since.At).Round(time.Millisecond),
		lag.Worst(l.meter.Spells(), since.At), countNICs(l.nics), programs())
}

// programs is what the programs with open NICs say of themselves.
func programs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/via-xdp", "res", "--json").CombinedOutput()
	var short bytes.Buffer
	if err != nil || json.Compact(&short, out) != nil {
		return fmt.Sprintf("programs: %v %s\n", err, out)
	}
	return fmt.Sprintf("programs: %s\n", &short)
}

// countNICs is what kernel and drivers have counted of n NICs.
func countNICs(n int) string {
	var b strings.Builder
	for i := range n {
		name := fmt.Sprintf("eth%d", i)
		var line string
		if err := inPeer(i == 1, func() (err error) {
			line, err = countNIC(name)
			return err
		}); err != nil {
			line = err.Error()
		}
		fmt.Fprintf(&b, "%s: %s\n", name, line)
	}
	return b.String()
}

// countNIC is a NIC of the thread's namespace, without what is nothing.
func countNIC(name string) (string, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return "", err
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return "", err
	}
	defer e.Close()
	driver, err := e.Stats(name)
	counts := map[string]any{"flags": l.Attrs().RawFlags, "link": l.Attrs().Statistics}
	for name, v := range driver {
		if v != 0 {
			counts[name] = v
		}
	}
	b, jsonErr := json.Marshal(counts)
	return string(b), errors.Join(err, jsonErr)
}
