// Package examples has the tests of the examples below it.
package examples

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	// What the examples are built of; a change of it makes old results invalid.
	_ "viaxdp/examples/internal/side"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/mpirun"
	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// What the two programs of each example print, in part, the server after it
// has said that it waits.
var outputs = map[string]struct{ server, client []string }{
	"pingpong": {[]string{"10000 round trips of 64 bytes"}, []string{"10000 round trips of 64 bytes"}},
	"stream":   {[]string{"4096 messages of 65536 bytes came\n"}, []string{"4096 messages of 65536 bytes in ", " MB/s\n"}},
	"rdmawrite": {
		[]string{"one line,\nanother line,\nand the last one\n"}, []string{"41 bytes written\n"},
	},
	"rdmaread": {
		[]string{"the client has read what it wanted\n"},
		[]string{"1 squared is 1\n12 squared is 144\n1234 squared is 1522756\n99999 squared is 9999800001\n"},
	},
	"manyvis": {[]string{"64 messages", "the sum of them is 2080\n"}, []string{"64 messages", "the sum of them is 89440\n"}},
	"notify": {
		[]string{"first\nsecond\nthird\nfourth\nfifth\nlast\n", "connection lost: the peer disconnected\n"},
		[]string{"6 messages sent\n"},
	},
	"web": {
		[]string{"1 connections by VIA\n"},
		[]string{"port 8080: this came by via\n", "port 8081: this came by tcp\n", "1 connections by VIA, 1 the other way\n"},
	},
}

// What the four ranks of the examples print that are started by mpirun.
var jobs = map[string]string{
	"rod": "32 points of 4 ranks have settled after 2951 steps\n" +
		"point  5:  15.2\npoint 13:  39.4\npoint 21:  63.6\npoint 29:  87.9\n",
}

// Each example does between two namespaces what it says.
func TestExamples(t *testing.T) {
	nstest.Require(t)
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir, "./...").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for name, want := range outputs {
		t.Run(name, func(t *testing.T) {
			server, client := runPair(t, filepath.Join(dir, name))
			for _, part := range want.server {
				nstest.ErrorIf(t, !strings.Contains(server, part), "the server printed %q, without %q", server, part)
			}
			for _, part := range want.client {
				nstest.ErrorIf(t, !strings.Contains(client, part), "the client printed %q, without %q", client, part)
			}
		})
	}
}

// Each example that is ranks does the same as ranks in namespaces.
func TestJobs(t *testing.T) {
	nstest.Require(t)
	for name, want := range jobs {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), name)
			if out, err := exec.Command("go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
				t.Fatalf("go build: %v\n%s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			defer cancel()
			var both bytes.Buffer
			err := mpirun.Run(ctx, mpirun.Job{Ranks: 4, Program: []string{program}, Stdout: &both, Stderr: &both})
			nstest.ErrorIf(t, err != nil || both.String() != want, "%v, printed %q, want %q", err, &both, want)
		})
	}
}

// A rank whose neighbour has died has said so when it aborts the job: Hydra kills all ranks then.
func TestRodSaysWhy(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	program := filepath.Join(t.TempDir(), "rod")
	if out, err := exec.Command("go", "build", "-o", program, "./rod").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	server := pmi.NewServer(2)
	var ends [2]*os.File // of the ranks
	results := make(chan error, 2)
	for rank := range ends {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		nstest.Must(t, err)
		ours := os.NewFile(uintptr(fds[0]), "ours")
		ends[rank] = os.NewFile(uintptr(fds[1]), "theirs")
		go func() {
			defer ours.Close()
			_, _, err := server.Serve(t.Context(), rank, ours)
			results <- err
		}()
	}
	rod := exec.CommandContext(t.Context(), program)
	rod.Env = append(os.Environ(), "PMI_FD=3", "PMI_RANK=0", "PMI_SIZE=2", "VIA_AGENT=none", mvich.DeviceVariable+"="+a.Name)
	rod.ExtraFiles = ends[:1]
	var said bytes.Buffer
	rod.Stderr = &said
	nstest.Must(t, a.Do(rod.Start))
	ends[0].Close()

	neighbour, err := unix.Dup(int(ends[1].Fd())) // FromEnv keeps it
	ends[1].Close()
	nstest.Must(t, err)
	t.Setenv("PMI_FD", fmt.Sprint(neighbour))
	t.Setenv("PMI_RANK", "1")
	t.Setenv("PMI_SIZE", "2")
	t.Setenv("VIA_AGENT", "none")
	launcher, err := pmi.FromEnv()
	nstest.Must(t, err)
	nic := nstest.In(t, b, func() (*vipl.NIC, error) { return vipl.OpenNIC(b.Name) })
	world, err := mvich.Init(nic, launcher)
	nstest.Check(t, err)
	nstest.Check(t, nic.Close())

	err = <-results
	rod.Process.Kill()
	rod.Wait()
	var abort *pmi.AbortError
	nstest.ErrorIf(t, !errors.As(err, &abort) || strings.Count(said.String(), "rank 1 is lost") != 1,
		"the job ends with %v, and the rank has said %q", err, &said)
	world.Finalize() // releases what it can
}

// No example is without a test, and each one says how to run it.
func TestEachExample(t *testing.T) {
	files, err := filepath.Glob("*/main.go")
	nstest.Must(t, err)
	var names []string
	for _, f := range files {
		name := filepath.Dir(f)
		names = append(names, name)
		text, err := os.ReadFile(f)
		nstest.Must(t, err)
		_, pair := outputs[name]
		_, job := jobs[name]
		lines := []string{
			"// Command " + name + " ",
			"//	via-xdp testbed up\n",
			fmt.Sprintf("//	ip netns exec via0 go run ./examples/%s -i via0 &\n", name),
			fmt.Sprintf("//	ip netns exec via1 go run ./examples/%s -i via1 -connect 10.77.0.1\n", name),
		}
		if job {
			lines = []string{
				"// Command " + name + " ",
				fmt.Sprintf("//	go build ./examples/%s\n//	via-xdp mpirun -np 4 ./%s\n", name, name),
			}
		}
		for _, line := range lines {
			nstest.ErrorIf(t, !strings.Contains(string(text), line), "%s has no line %q", f, line)
		}
		nstest.ErrorIf(t, pair == job, "%s has no test", name)
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(outputs)), slices.Collect(maps.Keys(jobs))) {
		nstest.ErrorIf(t, !slices.Contains(names, name), "there is no example %s", name)
	}
}

// An example that cannot work says why, and ends with status 1.
func TestExampleFails(t *testing.T) {
	for _, args := range [][]string{{"-i", "nosuch0"}, {"-connect", "nowhere"}, {"10.77.0.1"}} {
		for _, name := range []string{"pingpong", "notify", "web"} {
			cmd := exec.Command("go", append([]string{"run", "./" + name}, args...)...)
			out, err := cmd.CombinedOutput()
			nstest.ErrorIf(t, err == nil || !strings.HasPrefix(string(out), name+": ") || strings.Contains(string(out), "panic"),
				"%s %v: %v, printed %q", name, args, err, out)
			nstest.ErrorIf(t, len(args) == 1 && !strings.Contains(string(out), "is too much"),
				"%s %v: printed %q; want what is too much", name, args, out)
		}
	}
}

// waitLimit is how long a pair of programs may take.
const waitLimit = 3 * time.Minute

// runPair runs a program as the server and as a client of it, in two
// namespaces, and returns what they printed.
func runPair(t *testing.T, program string) (server, client string) {
	a, b := nstest.Pair(t, nstest.Options{})
	bed := &cprogram.Bed{A: a, B: b, Env: os.Environ(), Most: waitLimit}
	s, lines := bed.Piped(t, a, program, "-i", a.Name)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the server: %v, %v: %s", err, s.Wait(), &s.Out)
	}
	nstest.ErrorIf(t, first != "waiting for a client\n", "the server began with %q", first)
	rest := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(lines)
		rest <- string(text)
	}()
	c := bed.Start(t, b, program, "-i", b.Name, "-connect", a.IPv4.String())
	if client = c.Finish(t); !c.ProcessState.Success() {
		s.Process.Kill() // no client will come
	}
	server = <-rest
	s.Finish(t)
	return server, client
}
