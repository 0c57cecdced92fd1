package mvich

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// A packet is read as it was written.
func TestPacketRoundTrip(t *testing.T) {
	for _, want := range []struct {
		header header
		offer  offer
		data   []byte
	}{
		{header{kind: kindEager, flags: flagSync, credits: 7, length: 3, context: 4, tag: 5, size: 3, from: 6}, offer{}, []byte("abc")},
		{header{kind: kindRequest, tag: MaxTag, size: MaxMessage, from: 1}, offer{RGET, vipl.AddressSegment{Data: 1 << 40, Handle: 9}}, nil},
		{header{kind: kindReady, from: 1, to: 2, size: 77}, offer{RPUT, vipl.AddressSegment{Data: 8, Handle: 1}}, nil},
		{header{kind: kindData, length: 2, size: 1000, to: 3}, offer{}, []byte("xy")},
		{header{kind: kindNoop, flags: flagFull, credits: 65535}, offer{}, nil},
	} {
		b := make([]byte, headerSize)
		want.header.put(b)
		if want.offer.protocol != Auto {
			o := make([]byte, offerSize)
			want.offer.put(o)
			b = append(b, o...)
		}
		b = append(b, want.data...)
		h, o, data, err := parse(b)
		nstest.ErrorIf(t, err != nil || h != want.header || o != want.offer || !bytes.Equal(data, want.data), "%+v, %+v, %q, %v; want %+v", h, o, data, err, want)
		for n := range b {
			_, _, _, err := parse(b[:n])
			nstest.ErrorIf(t, err == nil, "%+v: %d of %d bytes are a packet, too", want.header, n, len(b))
		}
	}
}

// FuzzParse: any input is a packet with the invariants that the code relies on, or an error.
func FuzzParse(f *testing.F) {
	for k := kindEager; k <= kindBye; k++ {
		b := make([]byte, headerSize+offerSize)
		h := header{kind: k, tag: 1}
		h.put(b)
		(&offer{protocol: R3}).put(b[headerSize:])
		f.Add(b)
		f.Add(b[:headerSize])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, o, data, err := parse(b)
		if err != nil {
			return
		}
		carries := h.kind == kindEager || h.kind == kindData
		offers := h.kind == kindRequest || h.kind == kindReady
		switch {
		case h.kind < kindEager || h.kind > kindBye,
			int(h.length) != len(data), !carries && len(data) > 0, h.size > MaxMessage,
			(h.kind == kindEager || h.kind == kindRequest) && (h.tag < 0 || h.tag > MaxTag),
			offers != (o.protocol != Auto), h.kind == kindEager && int(h.size) != len(data):
			t.Errorf("%+v, %+v with %d bytes", h, o, len(data))
		}
	})
}

// A queue returns its elements in order, for any mixture of operations.
func TestFifo(t *testing.T) {
	var q fifo[int]
	in, out := 0, 0
	for turn := range 100 {
		for range turn % 7 * 3 {
			q.push(in)
			in++
		}
		for range min(turn%5*4, q.len()) {
			nstest.FatalIf(t, q.peek() != out || q.pop() != out, "turn %d: not %d", turn, out)
			out++
		}
		nstest.FatalIf(t, q.len() != in-out, "turn %d: %d in it, want %d", turn, q.len(), in-out)
		next := out
		q.each(func(v int) {
			nstest.FatalIf(t, v != next, "turn %d: each gives %d, want %d", turn, v, next)
			next++
		})
		nstest.FatalIf(t, next != in, "turn %d: each stops at %d of %d", turn, next, in)
	}
	q.drain(func(v int) {
		nstest.FatalIf(t, v != out, "drain gives %d, want %d", v, out)
		out++
	})
	nstest.ErrorIf(t, out != in || q.len() != 0, "%d of %d drained", out, in)
}

// Ranks are oversubscribed if they outnumber the processors that they may use together on one machine.
func TestOversubscribed(t *testing.T) {
	at := func(machine string, cpus int64) place { return place{machine, big.NewInt(cpus)} }
	for name, test := range map[string]struct {
		own    place
		others []place
		want   bool
	}{
		"alone":                 {at("a", 1), nil, false},
		"one each":              {at("a", 1), []place{at("a", 2)}, false},
		"both on any of two":    {at("a", 3), []place{at("a", 3)}, false},
		"both on one":           {at("a", 1), []place{at("a", 1)}, true},
		"four on two":           {at("a", 1), []place{at("a", 2), at("a", 1), at("a", 2)}, true},
		"three on any of two":   {at("a", 3), []place{at("a", 3), at("a", 3)}, true},
		"on machines":           {at("a", 1), []place{at("b", 1), at("c", 1)}, false},
		"processors not known":  {at("a", 0), []place{at("a", 0)}, false},
		"another machine's CPU": {at("a", 1), []place{at("a", 1), at("b", 2)}, true},
	} {
		nstest.Equal(t, name, oversubscribed(test.own, test.others), test.want)
	}
}

// A place parses as it was formatted, and the number of polls depends on it.
func TestPlace(t *testing.T) {
	t.Setenv(SpinVariable, "")
	own := here()
	nstest.ErrorIf(t, own.machine == "" || own.cpus.Sign() <= 0, "%v", own)
	got, err := parsePlace(own.String())
	nstest.ErrorIf(t, err != nil || got.machine != own.machine || got.cpus.Cmp(own.cpus) != 0, "%v is %v: %v", own, got, err)
	for _, s := range []string{"", "machine", "machine/", "machine/xyz", "machine/-1"} {
		nstest.WantErr(t, fmt.Sprintf("%q", s), nstest.Err(parsePlace(s)), ErrSettings)
	}
	for _, test := range []struct {
		options        []Option
		oversubscribed bool
		want           int
	}{{nil, false, DefaultSpin}, {nil, true, 0}, {[]Option{WithSpin(7)}, true, 7}, {[]Option{WithSpin(0)}, false, 0}} {
		s, err := makeSettings(test.options)
		nstest.Must(t, err)
		s.fillDefaults(test.oversubscribed)
		nstest.Equal(t, fmt.Sprintf("%d options, crowded %v: polls", len(test.options), test.oversubscribed), s.spin, test.want)
	}
}

// Polls in vain become fewer, down to none, unless a short sleep shows that they would have paid, and never exceed
// the setting. Now and then all are tried.
func TestLearn(t *testing.T) {
	w := &World{set: settings{spin: 1000}, spin: 1000}
	for range 20 {
		w.learn(time.Millisecond)
	}
	nstest.ErrorIf(t, w.spin != 0, "%d polls after long sleeps", w.spin)
	w.learn(time.Microsecond)
	before := w.spin
	nstest.ErrorIf(t, before < leastSpin, "%d polls after a short sleep", before)
	w.learn(time.Microsecond)
	nstest.Equal(t, "polls after another one", w.spin, 2*before)
	for range 20 {
		w.learn(time.Microsecond)
	}
	nstest.ErrorIf(t, w.spin != 1000, "%d polls after short sleeps", w.spin)
	tries := 0
	for range 5 * spinRetry {
		if w.learn(time.Millisecond); w.spin == 1000 {
			tries++
		}
	}
	nstest.ErrorIf(t, tries != 5, "%d full tries in %d long sleeps", tries, 5*spinRetry)
	w.set.spin, w.spin = 0, 0
	for range 2 * spinRetry {
		w.learn(time.Microsecond)
		nstest.Equal(t, "polls where there are to be none", w.spin, 0)
	}
}

// A rank is dead when it has not listened for a while (longer than a restart of its agent), or when for a longer
// time every request has failed.
func TestVigil(t *testing.T) {
	const long = 10 * time.Second
	nobody, silent := vipl.ErrNoMatch, vipl.ErrTimeout
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			every time.Duration
			errs  []error
			dead  time.Duration
		}{
			"nobody listens": {time.Second, []error{nobody}, absence + time.Second},
			"silent":         {time.Second, []error{silent}, long + time.Second},
			"in turn":        {time.Second, []error{nobody, silent}, long + time.Second},
		} {
			var v vigil
			start := time.Now()
			for i := 0; !v.inVain(test.errs[i%len(test.errs)], time.Now(), long); i++ {
				time.Sleep(test.every) // of virtual time
			}
			nstest.Equal(t, name+": dead after", time.Since(start), test.dead)
		}
		var v vigil
		nstest.ErrorIf(t, !v.inVain(silent, time.Now().Add(-long-1), long), "one long request is not enough")
	})
}

// FuzzSettings: any environment and options give usable settings, from the environment if no option is given, or an
// error that names the variable and its range.
func FuzzSettings(f *testing.F) {
	for _, c := range []struct{ threshold, spin string }{
		{"", ""}, {"100", "0"}, {"262144", "1099511627776"}, {"262145", ""}, {"-1", "20"}, {"5000", "-9223372036854775808"},
		{"many", "many"}, {"+7", "9223372036854775807"}, {"", "99999999999999999999"}, {"0x10", "1_0"},
	} {
		f.Add(c.threshold, c.spin, uint8(0), DefaultCredits, DefaultRegistered)
	}
	f.Add("", "", uint8(7), 4, -1)
	f.Add("100", "5", uint8(7), 256, int(^uint(0)>>1))
	f.Fuzz(func(t *testing.T, threshold, spin string, which uint8, credits, other int) {
		if strings.ContainsRune(threshold+spin, 0) {
			return // no environment has it
		}
		t.Setenv(ThresholdVariable, threshold)
		t.Setenv(SpinVariable, spin)
		var opts []Option
		for bit, o := range []Option{WithCredits(credits), WithThreshold(other), WithSpin(other), WithRegistered(other), WithUnexpected(other)} {
			if which>>bit&1 == 1 {
				opts = append(opts, o)
			}
		}
		s, err := makeSettings(opts)
		wantThreshold, ok1 := numeric(threshold, 1<<18)
		wantSpin, ok2 := numeric(spin, 1<<40)
		if !ok1 || !ok2 {
			name := SpinVariable
			if !ok1 {
				name = ThresholdVariable
			}
			nstest.WantErr(t, "a wrong variable", err, ErrSettings)
			nstest.ErrSays(t, "a wrong variable", err, name+"=")
			nstest.ErrSays(t, "a wrong variable", err, "want a number, 0 to ")
			return
		}
		if err != nil {
			nstest.FatalIf(t, !errors.Is(err, ErrSettings) || which == 0, "%v", err)
			return
		}
		if threshold != "" && which&2 == 0 && s.threshold != wantThreshold || spin != "" && which&4 == 0 && s.spin != wantSpin {
			t.Fatalf("%q, %q: %+v", threshold, spin, s)
		}
		s.fillDefaults(which&128 != 0)
		nstest.FatalIf(t, s.threshold < 0 || s.threshold > 1<<18 || s.spin < 0 || 1<<16*s.spin < s.spin || s.registered < 0 || s.unexpected < 0, "%+v", s)
		v := s.vbufSize()
		nstest.FatalIf(t, v < headerSize+s.threshold || v%64 != 0 || v > 1<<19, "vbufs of %d bytes for %d", v, s.threshold)
		noopAt := s.noopAt()
		nstest.FatalIf(t, s.credits < 4 || s.credits > 256 || s.reserve() < 1 || noopAt < 2 || noopAt > s.credits-s.reserve(),
			"%d credits, %d in reserve, noops from %d", s.credits, s.reserve(), noopAt)
	})
}

// numeric parses a variable whose value is at most most; an unset variable is valid, too.
func numeric(text string, most int64) (int, bool) {
	if text == "" {
		return 0, true
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.Sign() < 0 || n.Cmp(big.NewInt(most)) > 0 {
		return 0, false
	}
	return int(n.Int64()), true
}

// Any place that another rank publishes either formats back to the same text, or is an error. Ranks of other machines
// never make this one oversubscribed, nor does a rank alone on its processor.
func FuzzPlace(f *testing.F) {
	f.Add(here().String())
	f.Add("machine/3")
	f.Add("/-1")
	f.Add("a/b/0x1")
	f.Add("m/+_f")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePlace(s)
		if err != nil {
			return
		}
		again, err := parsePlace(p.String())
		nstest.FatalIf(t, err != nil || again.machine != p.machine || again.cpus.Cmp(p.cpus) != 0, "%q is %v, and that is %v, %v", s, p, again, err)
		own := here()
		nstest.FatalIf(t, p.machine != own.machine && oversubscribed(own, []place{p, p}) || oversubscribed(p, nil), "%q crowds", s)
	})
}

// A rank of another version is refused by its record, before a connection.
func TestRankOfAnotherVersion(t *testing.T) {
	w := &World{}
	own := "10.0.0.1,token,machine/f," + w.terms()
	_, _, err := w.parseRecord(own)
	nstest.Must(t, err)
	for _, other := range []string{fmt.Sprintf("mvich%d/", protocolVersion+1), ""} {
		_, _, err := w.parseRecord(strings.Replace(own, fmt.Sprintf("mvich%d/", protocolVersion), other, 1))
		nstest.WantErr(t, other, err, ErrSettings)
		nstest.ErrSays(t, other, err, "use one version of mvich")
	}
}

// FuzzRecord: any record that another rank publishes is an address and a place that format back to the same text, or
// an error.
func FuzzRecord(f *testing.F) {
	w := &World{}
	f.Add("10.0.0.1,token,machine/f," + w.terms())
	f.Add("fe80::1%eth0,,/0," + w.terms())
	f.Add("10.0.0.1,t,m/-1," + w.terms())
	f.Add("10.0.0.1,t,m/ff,mvich1/little-endian/int64/vbuf=1/credits=1")
	f.Fuzz(func(t *testing.T, s string) {
		a, at, err := w.parseRecord(s)
		if err != nil {
			return
		}
		nstest.FatalIf(t, !a.addr.IsValid() || at.cpus.Sign() < 0, "%+v, %+v", a, at)
		one := w.record(a, at)
		b, there, err := w.parseRecord(one)
		nstest.FatalIf(t, err != nil || w.record(b, there) != one, "%q is published as %q, and read as %+v, %+v, %v", s, one, b, there, err)
		alone := oversubscribed(at, nil)
		if more := oversubscribed(at, []place{{machine: at.machine, cpus: new(big.Int)}}); alone && !more {
			t.Fatalf("%q: crowded by one rank, and not by two", s)
		}
	})
}
