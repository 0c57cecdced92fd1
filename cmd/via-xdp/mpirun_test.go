package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/ops/mpirun"
	"viaxdp/mvich"
)

// -np is mpirun's flag, and no more when the program's arguments begin.
func TestMpirunArgs(t *testing.T) {
	for in, want := range map[string]string{
		"mpirun -np 4 prog -np 5":         "mpirun --np 4 prog -np 5",
		"mpirun --bind -np 4 prog":        "mpirun --bind --np 4 prog",
		"mpirun --mtu 9000 -np 4 -- prog": "mpirun --mtu 9000 --np 4 -- prog",
		"mpirun --loss 1 -np 4 prog":      "mpirun --loss 1 --np 4 prog",
		"mpirun -n 4 -- -np 5":            "mpirun -n 4 -- -np 5",
		"mpirun -np":                      "mpirun --np",
		"mpirun --np=2 prog":              "mpirun --np=2 prog",
		"mpibench -np 4":                  "mpibench -np 4",
		"":                                "",
	} {
		if got := strings.Join(mpirunArgs(strings.Fields(in)), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The command starts the given program, and ends with the status of the rank that ended
// the job.
func TestMpirun(t *testing.T) {
	var got mpirun.Job
	var end error
	var out bytes.Buffer
	env := environment{stdout: &out, stderr: &out}
	execute := func(args ...string) int {
		cmd := newMpirun(env, func(_ context.Context, j mpirun.Job) error { got = j; return end })
		cmd.SetArgs(append([]string{}, args...)) // for nil cobra takes this program's arguments
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		if err == nil {
			return exitFine
		}
		return statusOf(t.Context(), err)
	}
	if status := execute("--loss", "0.5", "prog"); status != exitFine || !got.Lossy || got.Loss != 0.005 || got.Ranks != 2 {
		t.Errorf("status %d, %+v", status, got)
	}
	if status := execute("--loss", "100", "prog"); status != exitFailed {
		t.Errorf("everything is to be lost: status %d", status)
	}
	if status := execute("--np", "3", "--bind", "--prefix", "--mtu", "9000", "prog", "-x", "--np", "7"); status != exitFine {
		t.Fatalf("status %d", status)
	}
	if got.Lossy || got.Ranks != 3 || !got.Bind || !got.Prefix || got.MTU != 9000 || !slices.Equal(got.Program, []string{"prog", "-x", "--np", "7"}) {
		t.Errorf("%+v", got)
	}
	end = &mpirun.RankError{Rank: 1, Status: 139, Err: errors.New("signal")}
	if status := execute("prog"); status != 139 || got.Ranks != 2 || got.MTU != 1500 {
		t.Errorf("status %d, %+v", status, got)
	}
	if status := execute(); status != exitFailed {
		t.Errorf("without a program: status %d", status)
	}
}

// A rank that was not started by a launcher, or has no interface, says so.
func TestMpibenchAlone(t *testing.T) {
	t.Setenv("PMI_FD", "")
	t.Setenv("PMI_PORT", "")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"latency"}, "not started by a launcher"},
		{[]string{"latency", "-i", "via9"}, "not started by a launcher"},
		{[]string{"latency", "-i", "via9", "--protocol", "post"}, `unknown protocol "post"`},
	} {
		t.Setenv(mvich.DeviceVariable, "")
		var out bytes.Buffer
		cmd := newMpibench(environment{stdout: &out, stderr: &out})
		cmd.SetArgs(test.args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want a word about %q", test.args, err, test.want)
		}
	}
}
