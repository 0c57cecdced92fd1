package mpiapps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// asRank is the application that the test program runs as a rank.
const asRank = "VIA_MPIAPPS_RANK_OF_A_TEST"

func TestMain(m *testing.M) {
	name := os.Getenv(asRank)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := beRank(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func beRank(name string) (err error) {
	launcher, err := pmi.FromEnv()
	if err != nil {
		return err
	}
	nic, err := vipl.OpenNIC("via0", vipl.WithSilence(30*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	world, err := mvich.Init(nic, launcher)
	if err != nil {
		return err
	}
	r, err := Run(world.Comm(), name, Options{Size: 50, Steps: 60})
	if err == nil && r != nil {
		err = r.Print(os.Stdout)
	}
	if err != nil {
		world.Abort(1)
		return err
	}
	return world.Finalize()
}

// Hydra's mpiexec runs both applications on two interfaces.
func TestMpiexec(t *testing.T) {
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		nstest.Lacks(t, "Hydra's mpiexec is not installed (Debian: mpich)")
	}
	self, err := os.Executable()
	nstest.Must(t, err)
	a, b := nstest.Pair(t, nstest.Options{})
	args := slices.Concat([]string{"-n", "1"}, a.Inside(t), []string{self, ":", "-n", "1"}, b.Inside(t), []string{self})
	for _, name := range Names() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, mpiexec, args...)
		cmd.Env = append(os.Environ(), asRank+"="+name)
		cmd.WaitDelay = 20 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), name+" of 50 x 50") || !strings.Contains(string(out), "ranks: 2:") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
