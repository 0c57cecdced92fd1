package mvich

import (
	"math/big"
	"testing"
)

// Whatever another rank has published, it is an address and a place that are published again the same, or an error.
func FuzzRecord(f *testing.F) {
	w := &World{}
	f.Add("10.0.0.1,token,machine/f," + w.terms())
	f.Add("fe80::1%eth0,,/0," + w.terms())
	f.Add("10.0.0.1,t,m/-1," + w.terms())
	f.Add("10.0.0.1,t,m/ff,little-endian/int64/vbuf=1/credits=1")
	f.Fuzz(func(t *testing.T, s string) {
		a, at, err := w.parseRecord(s)
		if err != nil {
			return
		}
		if !a.addr.IsValid() || at.cpus.Sign() < 0 {
			t.Fatalf("%+v, %+v", a, at)
		}
		one := w.record(a, at)
		b, there, err := w.parseRecord(one)
		if err != nil || w.record(b, there) != one {
			t.Fatalf("%q is published as %q, and read as %+v, %+v, %v", s, one, b, there, err)
		}
		alone := crowded(at, nil)
		if more := crowded(at, []place{{machine: at.machine, cpus: new(big.Int)}}); alone && !more {
			t.Fatalf("%q: crowded by one rank, and not by two", s)
		}
	})
}
