package vipl

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

const descriptorsEnv = "VIPL_TEST_DESCRIPTORS"

// A program whose first file is the NIC, and that has hardly any descriptors left, gets an error. Go's runtime would end it.
func TestOpenFirstWithFewDescriptors(t *testing.T) {
	if free, err := strconv.Atoi(os.Getenv(descriptorsEnv)); err == nil {
		nstest.WithDescriptors(t, free, func() {
			_, err := OpenNIC("via0", WithAgent("none"))
			nstest.ErrorIf(t, !errors.Is(err, unix.EMFILE) || !errors.Is(err, ErrResource) || Unavailable(err), "%v, want too many open files", err)
		})
		return
	}
	ns, _ := nstest.Pair(t, nstest.Options{})
	for free := range 8 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestOpenFirstWithFewDescriptors$")
		cmd.Env = append(os.Environ(), descriptorsEnv+"="+strconv.Itoa(free))
		nstest.Must(t, ns.Do(func() error {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%d descriptors: %v: %.300s", free, err, out)
			}
			return nil
		}))
	}
}
