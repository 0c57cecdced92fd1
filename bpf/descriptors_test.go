package bpf

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/nstest"
)

const descriptorsEnv = "BPF_TEST_DESCRIPTORS"

// firstProgram gets the first program of this process with n free descriptors, of which need are enough, and then loads one with all.
func firstProgram(t *testing.T, n, need int, get func() (*Demux, error)) {
	t.Helper()
	nstest.WithDescriptors(t, n, func() {
		d, err := get()
		if n >= need {
			nstest.Must(t, err)
			nstest.Must(t, d.Close())
			return
		}
		nstest.WantErr(t, "without descriptors", err, unix.EMFILE)
	})
	d, err := LoadDemux(Config{})
	nstest.Must(t, err)
	nstest.Must(t, d.Close())
}

// A process that has no descriptors for its first program hears of that, and loads one when it has.
func TestFewDescriptors(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv(descriptorsEnv)); err == nil {
		firstProgram(t, n, loadDescriptors, func() (*Demux, error) { return LoadDemux(Config{}) })
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

// A process that has no descriptors to take its first program over hears of that, and loads one when it has.
func TestAdoptWithFewDescriptors(t *testing.T) {
	if n, err := strconv.Atoi(os.Getenv(descriptorsEnv)); err == nil {
		objects, err := DescriptorsOf([]int{3, 4, 5, 6, 7})
		nstest.Must(t, err)
		nstest.Must(t, nstest.Err(os.ReadFile(os.DevNull))) // Go's runtime opens some with the first file
		firstProgram(t, n, adoptDescriptors, func() (*Demux, error) { return AdoptDemux(objects, 1) })
		return
	}
	nstest.Require(t)
	d, err := LoadDemux(Config{})
	nstest.Must(t, err)
	defer d.Close()
	objects, _ := d.Descriptors()
	var files []*os.File
	for _, fd := range objects.List() {
		f, err := fds.DupFile(fd, "bpf")
		nstest.Must(t, err)
		defer f.Close()
		files = append(files, f)
	}
	for n := range adoptDescriptors + 1 {
		cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestAdoptWithFewDescriptors$")
		cmd.Env = append(os.Environ(), descriptorsEnv+"="+strconv.Itoa(n))
		cmd.ExtraFiles = files
		out, err := cmd.CombinedOutput()
		nstest.ErrorIf(t, err != nil, "%d descriptors: %v: %s", n, err, out)
	}
}

// A process that has no descriptor to attach its program hears of that, and not that there is no such interface.
func TestAttachWithoutDescriptors(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	d, err := LoadDemux(Config{})
	nstest.Must(t, err)
	defer d.Close()
	nstest.Must(t, ns.Do(func() error {
		nstest.WithDescriptors(t, 0, func() { err = d.Attach(ns.Index, Generic) })
		nstest.WantErr(t, "without descriptors", err, unix.EMFILE)
		return d.Attach(ns.Index, Generic)
	}))
}
