package peers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// served is a worker that runs in this process; done says how serve returned.
func served(t *testing.T) (w *worker, done chan error) {
	t.Helper()
	ours, theirs := net.Pipe()
	done = make(chan error, 1)
	go func() { done <- serve(theirs) }()
	t.Cleanup(func() { ours.Close() })
	return newWorker("worker", ours), done
}

func sh(script string) request {
	return request{Op: opRun, Argv: []string{"sh", "-c", script}, Timeout: time.Minute}
}

func TestWorkerRun(t *testing.T) {
	t.Setenv("UCX_TLS", "all")
	w, done := served(t)
	r := sh(`echo out $LC_ALL $KEY $UCX_TLS; echo err >&2; exit 3`)
	r.Env = []string{"KEY=value"}
	o, err := w.call(r)
	if err != nil {
		t.Fatal(err)
	}
	want := output{Stdout: "out C value\n", Stderr: "err\n", Exit: 3}
	o.CPU, o.Switches = 0, 0
	if *o != want {
		t.Errorf("got %+v, want %+v", *o, want)
	}
	if err := o.failure(); err == nil || err.Error() != "err (exit status 3)" {
		t.Errorf("failure: %v", err)
	}
	if o, err = w.call(sh(`echo fine`)); err != nil || o.failure() != nil {
		t.Errorf("got %+v, %v", o, err)
	}
	if o, err = w.call(sh(`kill -9 $$`)); err != nil || o.failure() == nil || o.failure().Error() != "killed" {
		t.Errorf("got %+v, %v", o, err)
	}
	w.conn.Close()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// Only a program that says so has found nothing.
func TestFoundNothing(t *testing.T) {
	const nothing = "sockperf: No valid observations found. Try tune parameters: --time/--mps/--reply-every\n"
	for _, test := range []struct {
		o    *output
		want bool
	}{
		{nil, false},
		{&output{Exit: 1}, false},
		{&output{Stdout: "sockperf: Total 10 observations\n"}, false},
		{&output{Stderr: "sockperf: ERROR: connection refused\n", Exit: 1}, false},
		{&output{Stdout: "sockperf: Test ended\n\x1b[0;31m" + nothing, Exit: 1}, true},
		{&output{Stdout: nothing}, true},
		{&output{Stdout: nothing, Stderr: "sockperf: a warning\n", Exit: 1}, true},
		{&output{Stderr: nothing, Exit: 1}, true},
	} {
		if got := test.o.foundNothing(); got != test.want {
			t.Errorf("%+v: got %t", test.o, got)
		}
	}
}

// More output than is kept does not stop a process.
func TestWorkerMuchOutput(t *testing.T) {
	w, _ := served(t)
	o, err := w.call(sh(`head -c 3000000 /dev/zero; echo end >&2`))
	if err != nil || o.Exit != 0 || len(o.Stdout) != maxOutput || o.Stderr != "end\n" {
		t.Errorf("error %v, exit %d, %d bytes", err, o.Exit, len(o.Stdout))
	}
}

// Requests that cannot be fulfilled are answered by a reason, and the worker
// goes on.
func TestWorkerRefuses(t *testing.T) {
	w, _ := served(t)
	for _, test := range []struct {
		r    request
		want string
	}{
		{request{Op: "dance"}, `unknown operation "dance"`},
		{request{Op: opRun}, "no program is named"},
		{request{Op: opRun, Argv: []string{"via-xdp-no-such-program"}}, "executable file not found"},
		{request{Op: opRun, Argv: []string{"sleep", "100"}, Timeout: 10 * time.Millisecond}, "sleep has not ended within 10ms"},
		{request{Op: opStart, Argv: []string{"sleep", "100"}}, "not said what to await"},
		{request{Op: opStop}, "nothing was started"},
		{
			request{Op: opStart, Argv: []string{"sleep", "100"}, Listen: &socket{tcp, 1}, Timeout: 20 * time.Millisecond},
			"does not listen at port 1 of tcp after 20ms",
		},
		{
			request{Op: opStart, Argv: []string{"sh", "-c", "echo no library >&2; exit 127"}, Listen: &socket{tcp, 1}, Timeout: time.Minute},
			"does not listen: no library (exit status 127)",
		},
	} {
		o, err := w.call(test.r)
		var process processError
		if !errors.As(err, &process) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %+v, %v", test.r, o, err)
		}
	}
	if _, err := w.call(sh(`:`)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// freePort is a port of the loopback interface that nobody listens on.
func freePort(t *testing.T, network string) int {
	t.Helper()
	address := "127.0.0.1:0"
	if strings.HasSuffix(network, "6") {
		address = "[::1]:0"
	}
	var got net.Addr
	if strings.HasPrefix(network, "udp") {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			t.Skipf("no %s here: %v", network, err) // a kernel without IPv6
		}
		defer c.Close()
		got = c.LocalAddr()
	} else {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Skipf("no %s here: %v", network, err) // likewise
		}
		defer l.Close()
		got = l.Addr()
	}
	_, port, _ := net.SplitHostPort(got.String())
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A server that was started listens when the reply is there, and is gone when
// it was stopped.
func TestWorkerStart(t *testing.T) {
	for _, name := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		t.Run(name, func(t *testing.T) {
			w, _ := served(t)
			port := freePort(t, name)
			address := map[byte]string{'4': "127.0.0.1", '6': "[::1]"}[name[3]] + ":" + strconv.Itoa(port)
			s := socket{network(name[:3]), port}
			r := request{
				Op: opStart, Argv: []string{"/proc/self/exe", asListener, name, address},
				Listen: &s, Timeout: time.Minute,
			}
			if o, err := w.call(r); err != nil || o != nil {
				t.Fatalf("got %+v, %v", o, err)
			}
			if there, err := s.listening(); !there || err != nil {
				t.Errorf("listening: %v, %v", there, err)
			}
			if _, err := w.call(r); err == nil || !strings.Contains(err.Error(), "another process") {
				t.Errorf("a second one: %v", err)
			}
			o, err := w.call(request{Op: opStop})
			if err != nil || o.Signal != "terminated" {
				t.Errorf("stop: %+v, %v", o, err)
			}
			if there, err := s.listening(); there || err != nil {
				t.Errorf("listening afterwards: %v, %v", there, err)
			}
		})
	}
}

// A process that does not heed SIGTERM is killed.
func TestWorkerStopStubborn(t *testing.T) {
	w, _ := served(t)
	port := freePort(t, "tcp4")
	_, err := w.call(request{
		Op: opStart, Argv: []string{"/proc/self/exe", asListener, "tcp4", fmt.Sprintf("127.0.0.1:%d", port), "stubborn"},
		Listen: &socket{tcp, port}, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	o, err := w.call(request{Op: opStop})
	if err != nil || o.Signal != "killed" {
		t.Errorf("stop: %+v, %v", o, err)
	}
}

// The end of the control connection ends a process that runs, and serve.
func TestWorkerConnectionEnds(t *testing.T) {
	w, done := served(t)
	pid := t.TempDir() + "/pid"
	go w.call(sh(fmt.Sprintf("echo $$ >%s.new; mv %[1]s.new %[1]s; exec sleep 100", pid)))
	n := awaitPid(t, pid)
	w.conn.Close()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
	if err := unix.Kill(n, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
}

// awaitPid returns the number in a file that a process writes, in its own time.
func awaitPid(t *testing.T, file string) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the process has not started")
	return 0
}
