package agentd

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/lab/nstest"
)

// emptied is a descriptor store that records what was deleted.
type emptied map[string]bool

func (emptied) Put(string, []byte, ...int) error { return nil }
func (e emptied) Delete(key string) error {
	e[key] = true
	return nil
}

// For any entries, each one has one of three outcomes: it is not a pinned queue, and is left to others; it is
// refused and removed; or it is charged, with more than nothing, to the account of its user alone.
func FuzzPinned(f *testing.F) {
	const owed = fdstore.PinnedPrefix
	f.Add(owed+"A", []byte(`{"UID":1000,"Pinned":67108864,"Sockets":[77]}`), owed+"B", []byte(`{"UID":1000,"Pinned":4096,"Sockets":[0]}`), 2)
	f.Add(owed+"A", []byte(`{"UID":1000,"Pinned":2134016,"Sockets":[77,78],"ShmLink":true}`), owed+"B", []byte(`{"UID":1000,"Pinned":4096}`), 2)
	f.Add(owed+"A", []byte(`{"UID":7,"Pinned":8192,"Sockets":[7],"Shared":true,"Common":4096}`), owed+"B", []byte(`{"UID":7,"Pinned":4096,"Sockets":[8],"Shared":true}`), 2)
	f.Add(owed+"A", []byte(`{"UID":7,"Pinned":4096,"Sockets":[7],"Shared":true,"Common":8192}`), owed+"B", []byte(`{"UID":7,"Pinned":8192,"Sockets":[8],"Common":4096}`), 2)
	f.Add(owed+"A", []byte(`{"UID":1000,"Pinned":-67108864}`), "lease/eth0/0", []byte(`{}`), 2)
	f.Add(owed, []byte(`{"Pinned":9223372036854775807,"Sockets":[1]}`), owed+"/", []byte(`{"Pinned":9223372036854775807,"Sockets":[1]}`), 2)
	f.Add(owed+"A", []byte(`null`), owed+"B", []byte(`{"UID":4294967296,"Pinned":1,"Sockets":[1]}`), 1)
	f.Add(owed+"A", []byte(`{"UID":7,"Pinned":4096,"Sockets":[1]}`), owed+"B", []byte("?"), 1)
	f.Add("debts", []byte(`{"UID":1,"Pinned":1,"Sockets":[1]}`), owed+"B", []byte(`{"UID":0,"Pinned":0,"Sockets":[1]}`), 0)
	f.Fuzz(func(t *testing.T, key1 string, value1 []byte, key2 string, value2 []byte, files int) {
		if key1 == key2 || files < 0 || files > 3 {
			return // a descriptor store has a key once
		}
		gone := emptied{}
		s := &Server{
			cfg: Config{FDStore: gone}, log: slog.New(slog.DiscardHandler), closed: true, // no collector
			users: make(map[uint32]*account), pinnedQueues: make(map[*pinnedQueue]struct{}),
		}
		kept := []fdstore.Entry{
			{Key: key1, Value: value1, Files: make([]*os.File, files)}, {Key: key2, Value: value2, Files: make([]*os.File, 2)},
		}
		rest := s.restorePinned(kept)
		left := make(map[string]bool)
		for _, i := range rest {
			left[i.Key] = true
		}
		booked := make(map[string]bool)
		sum := make(map[uint32]claims)
		for d := range s.pinnedQueues {
			nstest.FatalIf(t, d.has.pinned <= 0 || len(d.sockets) == 0, "%d bytes are booked, %d sockets", d.has.pinned, len(d.sockets))
			booked[d.key] = true
			u := sum[d.uid]
			u.add(d.has, 1)
			sum[d.uid] = u
			b, err := json.Marshal(d.record())
			nstest.Must(t, err)
			r, err := readPinned(fdstore.Entry{Value: b, Files: make([]*os.File, 2)})
			if diff := cmp.Diff(d.record(), r, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Fatalf("%s is read again with (-was +is) %s: %v", b, diff, err)
			}
		}
		for _, i := range kept {
			owed := strings.HasPrefix(i.Key, fdstore.PinnedPrefix)
			if left[i.Key] == owed || (booked[i.Key] || gone[i.Key]) != owed || booked[i.Key] && gone[i.Key] || booked[i.Key] && len(i.Files) != 2 {
				t.Fatalf("%q: left %v, booked %v, gone %v", i.Key, left[i.Key], booked[i.Key], gone[i.Key])
			}
		}
		nstest.FatalIf(t, len(s.users) != len(sum), "%d accounts for %d users", len(s.users), len(sum))
		for uid, u := range s.users {
			nstest.FatalIf(t, u.claims != sum[uid] || u.pinned <= 0 || u.vis != 0,
				"the account of %d: %+v, want %+v", uid, u, sum[uid])
		}
	})
}

// A session is restored with a whole token and some memory, or not at all.
func FuzzTag(f *testing.F) {
	good, err := json.Marshal(tag{bytes.Repeat([]byte{7}, agentproto.TokenLen), 1000, []uint64{77, 78, 79}})
	nstest.Must(f, err)
	f.Add(good, 64<<20)
	f.Add(good, -1)
	f.Add(good, int(^uint(0)>>1))
	f.Add([]byte(`{"Token":"AAAA","UID":0}`), 1)
	f.Add(bytes.Replace(good, []byte("[77,78,79]"), []byte("[]"), 1), 64<<20)
	f.Add([]byte(`{"Token":null,"UID":-1}`), 1)
	f.Add([]byte(`null`), 0)
	f.Fuzz(func(t *testing.T, b []byte, pinned int) {
		got, err := readTag(b, pinned)
		if err != nil {
			nstest.FatalIf(t, len(got.Token) > 0 || got.UID != 0, "%q is refused, and is %+v", b, got)
			return
		}
		nstest.FatalIf(t, len(got.Token) != agentproto.TokenLen || len(got.Sockets) == 0 || pinned <= 0 || 1<<15*pinned < pinned, "a token of %d bytes, %d bytes pinned", len(got.Token), pinned)
		again, err := json.Marshal(got)
		nstest.Must(t, err)
		back, err := readTag(again, pinned)
		if err != nil || back.UID != got.UID || !slices.Equal(back.Sockets, got.Sockets) || !bytes.Equal(back.Token, got.Token) {
			t.Fatalf("%s is read again as %+v: %v", again, back, err)
		}
	})
}
