package bpf

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

const descriptorsEnv = "BPF_TEST_DESCRIPTORS"

// withDescriptors calls f while the process can open n more files.
func withDescriptors(t *testing.T, n int, f func()) {
	t.Helper()
	var limit unix.Rlimit
	nstest.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = min(limit.Cur, 256)
	nstest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	var all []int
	for fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil; fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC) {
		all = append(all, fd)
	}
	defer func() {
		for _, fd := range all {
			unix.Close(fd)
		}
		nstest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	}()
	for range n {
		unix.Close(all[len(all)-1])
		all = all[:len(all)-1]
	}
	f()
}

// A process that has no descriptors for its first program hears of that, and loads one when it has.
func TestFewDescriptors(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv(descriptorsEnv)); err == nil {
		withDescriptors(t, n, func() {
			d, err := LoadDemux(Config{})
			if n >= loadDescriptors {
				nstest.Must(t, err)
				nstest.Must(t, d.Close())
				return
			}
			nstest.WantErr(t, "without descriptors", err, unix.EMFILE)
		})
		d, err := LoadDemux(Config{})
		nstest.Must(t, err)
		nstest.Must(t, d.Close())
		return
	}
	nstest.Require(t)
	for n := range loadDescriptors + 1 {
		cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestFewDescriptors$")
		cmd.Env = append(os.Environ(), descriptorsEnv+"="+strconv.Itoa(n))
		out, err := cmd.CombinedOutput()
		nstest.ErrorIf(t, err != nil, "%d descriptors: %v: %s", n, err, out)
	}
}
