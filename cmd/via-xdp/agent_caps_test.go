package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The agent reports the capabilities that are missing in the kernel's line, whatever the program's name and the rest of
// the file are. A file without that line stops no agent.
func FuzzCapabilities(f *testing.F) {
	f.Add("via-xdp", uint64(0x1ffffffffff), "CapBnd:\t0\n")
	f.Add("CapEff:0", uint64(0x3000), "")
	f.Add("x", uint64(1)<<39, "CapEff:\t0\n")
	f.Add("x", uint64(1)<<21, "NoNewPrivs:\t0")
	f.Add("x", uint64(0x203000), "")
	f.Fuzz(func(t *testing.T, name string, have uint64, rest string) {
		name = strings.ReplaceAll(name, "\n", "\\n") // proc_pid_status(5)
		var want []string
		bit := func(n int) bool { return have&(1<<n) != 0 }
		if !bit(12) {
			want = append(want, "CAP_NET_ADMIN")
		}
		if !bit(13) {
			want = append(want, "CAP_NET_RAW")
		}
		if !bit(39) && !bit(21) {
			want = append(want, "CAP_BPF")
		}
		err := missingCapabilities(fmt.Sprintf("Name:\t%s\nUmask:\t0022\nCapPrm:\t0\nCapEff:\t%016x\n%s", name, have, rest))
		var missing *capabilityError
		if err != nil && statusOf(t.Context(), err) != exitCannotRun {
			t.Errorf("%v: exit status %d", err, statusOf(t.Context(), err))
		}
		if errors.As(err, &missing) != (err != nil) || err == nil && len(want) > 0 || err != nil && !slices.Equal(missing.missing, want) {
			t.Fatalf("%q with %x: %v, want %q", name, have, err, want)
		}
		if err := missingCapabilities(rest); errors.As(err, &missing) != (err != nil) || err != nil &&
			(len(missing.missing) == 0 || !strings.Contains(rest, "CapEff:") || !strings.Contains(err.Error(), "start it as root")) {
			t.Fatalf("%q: %v", rest, err)
		}
	})
}
