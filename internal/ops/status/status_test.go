package status

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/gopacket/gopacket/pcapgo"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/internal/ops/capture"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// look is the report of a program with two handles on one queue and a third on
// another, after some seconds.
func look(seconds int, f func(n []vipl.NICStatus)) *Report {
	nics := []vipl.NICStatus{
		{ID: 1, Interface: "eth0", Queue: 3, VIs: []vipl.VIStatus{{Number: 0x10001, Peer: netip.MustParseAddr("10.0.0.2")}}},
		{ID: 1, Interface: "eth0", Queue: 3, VIs: []vipl.VIStatus{{Number: 0x10002}}},
		{ID: 2, Interface: "eth1", VIs: []vipl.VIStatus{}},
	}
	f(nics)
	return &Report{Programs: []Program{{
		Program:       programs.Program{PID: 7, Command: "app"},
		ProgramStatus: vipl.ProgramStatus{Time: time.Unix(int64(1000+seconds), 0), Nics: nics},
	}}}
}

func TestRates(t *testing.T) {
	before := look(0, func(n []vipl.NICStatus) {
		n[0].Counters = vipl.Counters{Messages: 100, Corrupt: 5}
		n[1].Counters = n[0].Counters
		n[0].Socket, n[0].Demux = map[string]uint64{"rx_dropped": 1}, map[string]uint64{"redirected": 10, "key": 2}
		n[1].VIs[0].SendDone = 50
	})
	after := look(2, func(n []vipl.NICStatus) {
		n[0].Counters = vipl.Counters{Messages: 300, Corrupt: 5}
		n[1].Counters = n[0].Counters
		n[0].Socket, n[0].Demux = map[string]uint64{"rx_dropped": 4}, map[string]uint64{"redirected": 40, "key": 2}
		n[1].VIs[0].SendDone, n[1].VIs[0].Resent = 60, 4
	})
	list := after.Queues(before)
	nstest.FatalIf(t, len(list) != 2 || len(list[0].VIs) != 2 || len(list[1].VIs) != 0, "%+v", list)
	q := list[0]
	if c := q.Get("engine", "Messages"); c.Value != 300 || c.Rate != 100 || c.Drop {
		t.Errorf("%+v", c)
	}
	if c := q.Get("demux", "redirected"); c.Rate != 15 || c.Drop {
		t.Errorf("%+v", c)
	}
	if v := q.VIs[1]; v.Number != 0x10002 || v.SendRate != 5 || v.ResentRate != 2 || v.RecvRate != 0 {
		t.Errorf("%+v", v)
	}
	names := func(counts []Count) (s []string) {
		for _, c := range counts {
			s = append(s, c.Name)
		}
		return s
	}
	if got := names(q.Drops(true)); !slices.Equal(got, []string{"rx_dropped"}) {
		t.Errorf("drops that moved: %v", got)
	}
	if got := names(q.Drops(false)); !slices.Equal(got, []string{"Corrupt", "rx_dropped", "key"}) {
		t.Errorf("drops: %v", got)
	}

	// A first report has no rates, nor has a program that has been replaced by another.
	other := look(0, func([]vipl.NICStatus) {})
	other.Programs[0].Command = "bpp"
	for _, before := range []*Report{nil, other} {
		for _, c := range after.Queues(before)[0].Counts {
			nstest.ErrorIf(t, c.Rate != 0, "%+v", c)
		}
	}
	after.Only("eth1")
	if len(after.Queues(nil)) != 1 || len(after.Targets()) != 1 || after.Targets()[0].Sources[0].Interface != "eth1" {
		t.Errorf("only eth1: %+v", after)
	}
	after.Only("eth2")
	nstest.ErrorIf(t, len(after.Programs) != 0, "only eth2: %+v", after)
}

// Exactly the counters that the document calls drops are marked as drops.
func TestDropsAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/counters.md")
	nstest.Must(t, err)
	c := look(0, func(n []vipl.NICStatus) {
		n[0].Socket = map[string]uint64{}
		(&xdpnic.Stats{}).Each(func(c xdpnic.Counter) { n[0].Socket[c.Name] = 0 })
	})
	q := c.Queues(nil)[0]
	for group, title := range map[string]string{"engine": "\n## Engine\n", "socket": "\n## Queue\n"} {
		_, section, _ := strings.Cut(string(text), title)
		section, _, _ = strings.Cut(section, "\n## ")
		rows := regexp.MustCompile("(?m)^\\| `([A-Za-z_]+)` \\| (drop: )?").FindAllStringSubmatch(section, -1)
		nstest.FatalIf(t, len(rows) < 20, "%d counters of the %s in the document", len(rows), group)
		for _, r := range rows {
			if got := q.Get(group, r[1]); got.Name == "" || got.Drop != (r[2] != "") {
				t.Errorf("%s in the document: %q; %+v", r[1], r[2], got)
			}
		}
	}
}

func TestTake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	before := Take([]string{dir})
	for range 10 {
		a.Send(t, b, []byte("counted"))
	}
	after := Take([]string{dir})
	list := after.Queues(before)
	nstest.FatalIf(t, len(list) != 2 || len(after.Failed) > 0, "%+v", after)
	got := list[1].Get("engine", "Messages")
	nstest.ErrorIf(t, got.Value != 10 || got.Rate <= 0, "%+v", got)
	if v := list[0].VIs[0]; v.SendRate <= 0 || v.RecvRate != 0 || v.SendDone != 10 {
		t.Errorf("%+v", v)
	}
}

// No text of a program's answer has a terminal control sequence, also not in JSON, which leaves U+009B as it is.
func TestCleanAll(t *testing.T) {
	const control = "\u009b2J"
	s := vipl.ProgramStatus{Nics: []vipl.NICStatus{{
		Socket: map[string]uint64{control: 1}, Demux: map[string]uint64{control: 1},
		VIs: []vipl.VIStatus{{Peer: netip.MustParseAddr("fe80::1%" + control)}},
	}}}
	n := &s.Nics[0]
	for _, part := range []any{n, &n.VIs[0], &n.Mem} {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.String {
				f.SetString(control)
			}
		}
	}
	clean(&s)
	b, err := json.Marshal(s)
	nstest.Must(t, err)
	nstest.ErrorIf(t, strings.Contains(string(b), control), "%s", b)
}

// FuzzStatus: any answer of a program is shown without terminal control sequences, with finite
// rates, and each of its VIs once.
func FuzzStatus(f *testing.F) {
	good, err := json.Marshal(vipl.ProgramStatus{Time: time.Unix(1000, 0), Nics: []vipl.NICStatus{{
		ID: 1, Interface: "eth0", Socket: map[string]uint64{"rx_dropped": 1}, Demux: map[string]uint64{"key": 2},
		VIs: []vipl.VIStatus{{Number: 0x10001, Peer: netip.MustParseAddr("fe80::1%eth0"), State: "connected"}},
	}}})
	nstest.Must(f, err)
	f.Add(good, good)
	f.Add([]byte(`{"nics":[{"interface":"\u001b[2J","socket":{"a\u001bb":1,"a?b":2},"vis":[{"peer":"fe80::1%\u0007","cause":"x\ny"}]}]}`), good)
	f.Add([]byte(`{"nics":[{"vis":null},{"vis":[{"number":1},{"number":1}]}]}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var all [2]Report
		for i, b := range [][]byte{first, second} {
			p := Program{Program: programs.Program{PID: 7, Command: "app"}}
			if json.Unmarshal(b, &p.ProgramStatus) != nil {
				return
			}
			clean(&p.ProgramStatus)
			all[i].Programs = []Program{p}
		}
		vis := 0
		for _, n := range all[1].Programs[0].Nics {
			vis += len(n.VIs)
		}
		for _, q := range all[1].Queues(&all[0]) {
			vis -= len(q.VIs)
			q.Drops(true)
			shown := []string{q.String(), q.Mode}
			for _, c := range q.Counts {
				shown = append(shown, c.Name)
			}
			for _, v := range q.VIs {
				shown = append(shown, v.State, v.Level, v.Cause, v.Peer.String())
			}
			if i := strings.IndexFunc(strings.Join(shown, ""), func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
				t.Fatalf("%q is shown", shown)
			}
		}
		nstest.ErrorIf(t, vis != 0, "%d VIs are missing", vis)
		all[1].Targets()
		if _, err := json.Marshal(all[1].Queues(&all[0])); err != nil {
			t.Fatal(err)
		}
		all[1].Only("eth0")
		for _, q := range all[1].Queues(nil) {
			nstest.ErrorIf(t, q.Interface != "eth0", "%v is not of eth0", q)
		}
	})
}

// Without the descriptors to find the programs, Take says so: that no program has a NIC open may be wrong.
func TestTakeWithFewDescriptors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	for n := range 3 { // with more the program is found, but has none left to answer
		nstest.WithDescriptors(t, n, func() {
			if r := Take([]string{dir}); len(r.Programs) == 0 && len(r.Failed) == 0 {
				t.Errorf("%d descriptors free: no program, and no reason", n)
			}
		})
	}
}

// A program of another user may answer as much as its budget allows. Working on that takes time in proportion.
func TestManyQueues(t *testing.T) {
	many := func(seconds int) *Report {
		r := look(seconds, func([]vipl.NICStatus) {})
		r.Programs[0].Nics = make([]vipl.NICStatus, 1<<15)
		for i := range r.Programs[0].Nics {
			r.Programs[0].Nics[i].ID = uint32(i)
		}
		return r
	}
	before, after := many(0), many(1)
	began := time.Now()
	queues, sources := after.Queues(before), after.Targets()[0].Sources
	took := time.Since(began)
	if len(queues) != 1<<15 || len(sources) != 1<<15 {
		t.Errorf("%d queues and %d sources, want %d", len(queues), len(sources), 1<<15)
	}
	nstest.ErrorIf(t, took > 10*time.Second, "took %v", took)
}

// What a program answers does not spoil the file of a capture, in which lengths have 16 bits.
func TestLongNames(t *testing.T) {
	r := look(0, func(n []vipl.NICStatus) { n[0].Interface = strings.Repeat("x", 70000) })
	clean(&r.Programs[0].ProgramStatus)
	var file bytes.Buffer
	f, err := capture.NewFile(&file, r.Targets()[0].Sources, 64)
	nstest.Must(t, err)
	nstest.Must(t, f.Write(1, capture.Frame{ID: 2, Time: time.Unix(1000, 0), Len: 3, Data: []byte("abc")}))
	nstest.Must(t, f.Close())
	n, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	nstest.Must(t, err)
	if b, _, err := n.ReadPacketData(); err != nil || string(b) != "abc" {
		t.Errorf("the frame of another queue: %q, %v", b, err)
	}
}
