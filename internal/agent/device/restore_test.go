package device

import (
	"os"
	"testing"
	"viaxdp/internal/agent/fdstore"
)

// A record that makes no sense is no reason to drop the others of its interface; one about the
// interface itself is, and what its queues had is returned.
func TestBadRecords(t *testing.T) {
	const place = "via0:7:4793"
	entry := func(key, value string, files ...*os.File) fdstore.Entry {
		return fdstore.Entry{Key: key, Value: []byte(value), Files: files}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	good := []fdstore.Entry{
		entry(nicKey(place), `{"Index":7,"Port":4793}`),
		entry(leaseKey(place, 2), `{"Queue":2,"Slot":1,"Tag":"eA==","Info":{"Info":{"Arena":{"Size":4096}}}}`, r, w),
		entry(viKey(place, 9), `{"Queue":2}`),
	}
	bad := []fdstore.Entry{
		entry(leaseKey(place, 3), `{"Queue":`), entry(leaseKey(place, 4), `{"Queue":4}`), entry(leaseKey(place, 5), `{"Queue":2}`, r),
		entry("vi/"+place+"/none", `{}`), entry(viKey(place, 3), `[]`), entry("listen/"+place+"/1", `[]`), entry("odd/"+place, ``),
	}
	k, nic, err := sortEntries(place, append(bad, good...))
	if err != nil || nic.Index != 7 || len(k.leases) != 1 || len(k.vis) != 1 || len(k.listens) != 0 {
		t.Errorf("%+v, %+v, %v", k, nic, err)
	}
	for _, i := range bad {
		if k.bad[i.Key] == nil {
			t.Errorf("nothing against %s", i.Key)
		}
	}
	if len(k.bad) != len(bad) {
		t.Errorf("against %d records: %v", len(k.bad), k.bad)
	}
	good[0].Value = []byte(`{"Index":"seven"}`)
	if k, _, err = sortEntries(place, good); err == nil {
		t.Error("an interface without its record")
	}
	lost := k.lost()
	if len(lost) != 1 || lost[0].Local != nil || string(lost[0].Tag) != "x" || lost[0].Alive != r || lost[0].Memory != w || lost[0].Size != 4096+4*4096 { // the memory, and a page of each ring
		t.Errorf("lost: %+v", lost)
	}
	if len(good[1].Files) != 0 {
		t.Error("the files are those of two")
	}
}
