package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// turnsVariable is how many turns TestSpeed takes, some 20 s each; without it, it is
// left out.
const turnsVariable = "VIA_SPEED_TURNS"

// TestSpeed compares the ping-pong and window programs in C with the same in Go,
// written in the same way, and with TCP: all in turns on one veth pair, a process a
// CPU. It prints a table of the medians for docs/libvipl.md. It fails only when a
// program does, as a busy machine is not the library's fault.
func TestSpeed(t *testing.T) {
	turns, err := strconv.Atoi(os.Getenv(turnsVariable))
	if err != nil || turns < 1 {
		t.Skipf("measures only with $%s, a number", turnsVariable)
	}
	lib := library(t, "taskset")
	c := compiler{"gcc", "-O2"}
	pingpong, window, tcp := c.compile(t, lib, "pingpong"), c.compile(t, lib, "window"), c.compile(t, lib, "tcp")
	self, err := os.Executable()
	nstest.Must(t, err)
	own := newBed(t, 1500)
	tcpBed := newBed(t, 1500) // without an XDP program
	a, device := own.a.IPv4.String(), "via0"
	count := map[int]string{64: "10000", 1024: "5000", 4096: "2000", 32768: "500"}
	sizes := []int{64, 1024, 4096, 32768}

	type cell struct {
		what string
		size int
	}
	got := map[cell][]float64{}
	measure := func(bed *bed, what string, size, column int, server, client []string) {
		args := []string{count[size], strconv.Itoa(size)}
		s := bed.start(t, bed.a, slices.Concat([]string{"taskset", "-c", "0"}, server, args)...)
		out := bed.start(t, bed.b, slices.Concat([]string{"taskset", "-c", "1"}, client, args)...).finish(t)
		s.finish(t)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		fields := strings.Fields(lines[len(lines)-1])
		if len(fields) <= column {
			t.Fatalf("%s said %q", what, out)
		}
		v, err := strconv.ParseFloat(fields[column], 64)
		nstest.Must(t, err)
		got[cell{what, size}] = append(got[cell{what, size}], v)
	}
	goSide := func(program, who string) []string { return []string{self, program, who, device} }
	for range turns {
		for _, size := range sizes {
			measure(own, "C", size, 2, []string{pingpong, "server", device}, []string{pingpong, "client", device, a})
			measure(own, "Go", size, 2, goSide(goPingPong, "server"), append(goSide(goPingPong, "client"), a))
			measure(tcpBed, "TCP", size, 2, []string{tcp, "server", "pingpong"}, []string{tcp, "client", "pingpong", a})
			measure(own, "C stream", size, 1, []string{window, "server", device}, []string{window, "client", device, a})
			measure(own, "Go stream", size, 1, goSide(goWindow, "server"), append(goSide(goWindow, "client"), a))
			measure(tcpBed, "TCP stream", size, 1, []string{tcp, "server", "window"}, []string{tcp, "client", "window", a})
		}
	}
	median := func(what string, size int) float64 {
		v := got[cell{what, size}]
		slices.Sort(v)
		return v[len(v)/2]
	}
	text := "\n| bytes | C, us one way | Go | C / Go | TCP | C, MB/s | Go | TCP |\n|---|---|---|---|---|---|---|---|\n"
	for _, size := range sizes {
		c, g := median("C", size), median("Go", size)
		text += fmt.Sprintf("| %d | %.2f | %.2f | %.2f | %.2f | %.0f | %.0f | %.0f |\n", size, c, g, c/g, median("TCP", size),
			median("C stream", size), median("Go stream", size), median("TCP stream", size))
	}
	t.Log(text)
}
