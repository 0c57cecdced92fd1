//go:build linux

// Command guest is the first and only process that the lane's virtual machine
// starts: it makes the machine as the plan wants it, runs the plan's steps,
// reports each over the second serial port and turns the machine off.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/vm/plan"
)

func main() {
	// Whatever happens, the machine ends: the host waits for it.
	defer off()
	defer func() {
		if p := recover(); p != nil {
			fmt.Println("guest:", p)
		}
	}()
	if err := mounts(); err != nil {
		fmt.Println("guest:", err)
		return
	}
	out, err := openResults()
	if err != nil {
		fmt.Println("guest:", err)
		return
	}
	start := time.Now()
	fail := func(err error) {
		out.send(plan.Event{Status: -1, Error: err.Error()})
	}
	p, err := readPlan()
	if err == nil {
		err = prepare(p)
	}
	if err != nil {
		fail(err)
		return
	}
	out.send(plan.Event{Step: "boot", Seconds: uptime()})
	runSteps(p, out)
	out.send(plan.Event{Done: true, Seconds: time.Since(start).Seconds()})
}

func readPlan() (p plan.Plan, err error) {
	b, err := os.ReadFile(plan.Path)
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// results is the serial port to the host.
type results struct{ f *os.File }

func openResults() (*results, error) {
	f, err := os.OpenFile(plan.Results, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	// As a terminal it would echo and translate.
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	return &results{f}, err
}

// send writes an event and waits until it is out.
func (r *results) send(e plan.Event) {
	b, err := json.Marshal(e)
	if err == nil {
		_, err = r.f.Write(append(b, '\n'))
	}
	if err == nil {
		err = unix.IoctlSetInt(int(r.f.Fd()), unix.TCSBRK, 1) // tcdrain(3)
	}
	if err != nil {
		fmt.Println("guest: results:", err)
	}
}

func uptime() float64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano()).Seconds()
}

// off ends the machine.
func off() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("guest: power off:", err)
	}
}
