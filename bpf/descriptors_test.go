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

// A process that has no descriptors for its first program hears of that, and loads one when it has.
func TestFewDescriptors(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv(descriptorsEnv)); err == nil {
		nstest.WithDescriptors(t, n, func() {
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
