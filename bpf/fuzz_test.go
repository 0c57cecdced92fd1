package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// longestFuzzed is the length of the frames that are tried at most: all that the program
// looks at lies in the first 110 bytes.
const longestFuzzed = 256

// The program does with any frame what the model says, and counts it under the name that
// the model gives.
func FuzzDemux(f *testing.F) {
	d := loadTestDemux(f)
	for _, v := range verdicts {
		if len(v.frame) <= longestFuzzed {
			f.Add(v.frame)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 14 || len(b) > longestFuzzed {
			return // not an Ethernet frame for the kernel's test run, or nothing new
		}
		action, counter := testModel().verdict(b)
		if gotAction, got := run(t, d, b, 0); gotAction != action || got != counter {
			t.Errorf("action %d, counter %q; the model says %d, %q\n%x", gotAction, got, action, counter, b)
		}
	})
}

// The baseline's program does with any frame what its model says.
func FuzzRedirect(f *testing.F) {
	r := loadTestRedirect(f, RedirectConfig{Frags: true})
	must(f, r.Register(0, rawSocket(f)))
	for _, v := range verdicts {
		if len(v.frame) <= longestFuzzed {
			f.Add(v.frame)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 14 || len(b) > longestFuzzed {
			return // see FuzzDemux
		}
		action, err := r.Program.Run(&ebpf.RunOptions{Data: b})
		must(t, err)
		if want := redirectModel(b); action != want {
			t.Errorf("action %d; the model says %d\n%x", action, want, b)
		}
	})
}
