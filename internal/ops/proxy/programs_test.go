package proxy

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// need finds a program that a test runs. Without it the test ends: with a failure when VIA_PEERS=require, as for
// bench's programs, and with a skip elsewhere.
func need(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("VIA_PEERS") == "require":
		t.Fatalf("%s is not installed (Debian's package %s)", name, pkg)
	default:
		t.Skipf("%s is not installed (Debian's package %s)", name, pkg)
	}
	return path
}

// ownHost is an address that is this process's alone, where a port is nobody's that it has not given: a free one of
// 127.0.0.1 may be another program's before the one that it was chosen for has it.
func ownHost() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64|pid>>16&63, pid>>8&255, pid&255)
}

// Redis and its load generator talk through two proxies.
func TestRedis(t *testing.T) {
	server, load := need(t, "redis-server", "redis-server"), need(t, "redis-benchmark", "redis-tools")
	host, port := ownHost(), "6399"
	address := net.JoinHostPort(host, port)
	cmd := exec.Command(server, "--port", port, "--bind", host, "--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for end := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) { // until it listens
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	_, at, _ := net.SplitHostPort(chain(t, address))
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, load, "-h", "127.0.0.1", "-p", at, "-n", "2000", "-c", "8", "-d", "5000", "-t", "set,get", "-q").CombinedOutput()
	if err != nil || strings.Count(string(out), "requests per second") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}
