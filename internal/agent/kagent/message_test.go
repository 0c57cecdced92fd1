package kagent

import (
	"encoding/json"
	"errors"
	"testing"

	"viaxdp/hugepages"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// An Info survives JSON with all its fields.
func TestInfoMessage(t *testing.T) {
	i := Info{
		Interface: "eth1", Index: 3, Queue: 2, Mode: xdpnic.ModeGeneric, Notes: []string{"note"},
		Attempts: []xdpnic.Attempt{{Mode: xdpnic.ModeNative, Err: errors.New("no")}, {Mode: xdpnic.ModeGeneric}},
		NIC:      xdpnic.Info{MaxSegs: 18, FeaturesErr: errors.New("old kernel"), Attempts: []xdpnic.Attempt{{Mode: xdpnic.ModeGeneric}}},
		Arena: hugepages.Info{Size: 4096, Refused: []hugepages.Refusal{
			{Step: hugepages.Hugetlb, Err: errors.New("ENOMEM"), Cause: "cause", Remedy: "remedy"}, {Step: hugepages.THP, Cause: "c"},
		}},
	}
	b, err := json.Marshal(i.Message())
	nstest.Must(t, err)
	var m InfoMessage
	nstest.Must(t, json.Unmarshal(b, &m))
	got := m.Restore()
	if got.Attempts[0].Err.Error() != "no" || got.Attempts[1].Err != nil || got.NIC.FeaturesErr.Error() != "old kernel" ||
		len(got.NIC.Attempts) != 1 || got.Notes[0] != "note" || got.Mode != i.Mode || got.NIC.MaxSegs != 18 {
		t.Errorf("%+v", got)
	}
	if got.Arena.String() != i.Arena.String() {
		t.Errorf("%v, want %v", got.Arena, i.Arena)
	}
	if i.Attempts[0].Err.Error() != "no" || len(i.Arena.Refused) != 2 {
		t.Error("encoding has changed the original")
	}
}
