package status

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"viaxdp/internal/base/programs"
	"viaxdp/vipl"
)

// Whatever a program says of itself, it is shown without anything that a terminal would obey, with
// finite rates, and each of its VIs once.
func FuzzStatus(f *testing.F) {
	good, err := json.Marshal(vipl.ProgramStatus{Time: time.Unix(1000, 0), Nics: []vipl.NICStatus{{
		ID: 1, Interface: "eth0", Socket: map[string]uint64{"rx_dropped": 1}, Demux: map[string]uint64{"key": 2},
		VIs: []vipl.VIStatus{{Number: 0x10001, Peer: netip.MustParseAddr("fe80::1%eth0"), State: "connected"}},
	}}})
	if err != nil {
		f.Fatal(err)
	}
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
		if vis != 0 {
			t.Errorf("%d VIs are missing", vis)
		}
		all[1].Targets()
		if _, err := json.Marshal(all[1].Queues(&all[0])); err != nil {
			t.Fatal(err)
		}
		all[1].Only("eth0")
		for _, q := range all[1].Queues(nil) {
			if q.Interface != "eth0" {
				t.Errorf("%v is not of eth0", q)
			}
		}
	})
}
