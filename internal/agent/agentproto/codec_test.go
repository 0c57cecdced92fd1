package agentproto

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

// FuzzRequest: for any input, parsing returns a complete request, or an error that matches ErrProtocol; a parsed
// request survives writing and reading.
func FuzzRequest(f *testing.F) {
	for op := range needs {
		b, err := json.Marshal(Request{
			ID: 7, Op: op, Versions: []int{1}, Token: make([]byte, TokenLen), Open: &Open{Interface: "via0"}, Target: 3,
			VI: 1, Peer: netip.MustParseAddr("10.0.0.1"), Local: &kagent.Address{}, Remote: &kagent.Address{Disc: []byte("x")},
			Offer: &kagent.Offer{VI: 1}, Handle: 5, Timeout: 1,
		})
		nstest.Must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"id":1,"op":"link"} x`))
	f.Add([]byte(`{"id":1,"op":"wait","local":{"Host":"fe80::1%eth0","Disc":"AAAA"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := ParseRequest(b)
		if err != nil {
			nstest.FatalIf(t, !errors.Is(err, ErrProtocol), "%v", err)
			return
		}
		if _, known := needs[q.Op]; !known || q.ID == 0 || q.Timeout < 0 {
			t.Fatalf("%+v", q)
		}
		again, err := json.Marshal(q)
		nstest.Must(t, err)
		r, err := ParseRequest(again)
		nstest.FatalIf(t, err != nil || !reflect.DeepEqual(normal(q), normal(r)), "%+v is read again as %+v, %v", q, r, err)
	})
}

// FuzzReply: for any data of an agent, reading a message takes no more than its length, and returns a message
// that survives writing and reading, or an error.
func FuzzReply(f *testing.F) {
	for _, r := range []Reply{
		{ID: 1, Welcome: &Welcome{Version: 1, PID: 2, Netns: [2]uint64{3, 4}}},
		{ID: 2, Opened: &Opened{Token: make([]byte, TokenLen)}},
		{ID: 3, Error: NewError(kagent.ErrNoMatch)},
		{ID: 4, Incoming: &Exchange{Handle: 5, Local: kagent.Address{Disc: []byte("x")}}},
		{ID: 5, Neighbors: []kagent.Neighbor{{}}, Link: &kagent.Link{}, Path: &kagent.Path{}},
		{Ended: 6, Error: NewError(&kagent.RejectedError{Reason: wire.CMReasonQoS})},
	} {
		b, err := Encode(r, MaxReply)
		nstest.Must(f, err)
		f.Add(b)
	}
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{', '}'})
	f.Add([]byte("\x00\x00\x00\x04null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		r, err := parseReply(in)
		if err != nil {
			return
		}
		if took := len(b) - in.Len(); took != 4+int(binary.BigEndian.Uint32(b)) {
			t.Fatalf("%d bytes were read of %x", took, b[:4])
		}
		if r.Error != nil {
			_ = r.Error.Error()
		}
		// What was read is written in one form, which stays what it is.
		one, err := json.Marshal(r)
		nstest.Must(t, err)
		var back Reply
		if err := json.Unmarshal(one, &back); err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		if two, err := json.Marshal(back); err != nil || !bytes.Equal(one, two) {
			t.Fatalf("%s is read again as %s, %v", one, two, err)
		}
	})
}

// normal makes empty slices nil, since they are omitted.
func normal(q Request) Request {
	if len(q.Versions) == 0 {
		q.Versions = nil
	}
	if len(q.Token) == 0 {
		q.Token = nil
	}
	return q
}

// Each operation is accepted with its required fields, and refused without them.
func TestNeeds(t *testing.T) {
	for op, need := range needs {
		_, err := ParseRequest([]byte(fmt.Sprintf(`{"id":1,"op":%q}`, op)))
		nstest.ErrorIf(t, (err == nil) != (need == nil) || err != nil && !errors.Is(err, ErrProtocol), "%s alone: %v", op, err)
		nstest.ErrorIf(t, nstest.Err(ParseRequest([]byte(fmt.Sprintf(`{"op":%q}`, op)))) == nil,
			"%s without a number: no error", op)
	}
	for _, open := range []string{
		`{"interface":"via0","queue":-1,"mode":4}`, `{"interface":"via0","queue":0,"hugepages":3}`,
		`{"interface":"via0","queue":0,"hugepages":-1}`, `{"interface":"","queue":0}`,
		`{"interface":"via0","queue":0,"steer":4}`,
		`{"interface":"longer than an interface","queue":0}`,
	} {
		if _, err := ParseRequest([]byte(`{"id":1,"op":"open","open":` + open + `}`)); !errors.Is(err, ErrProtocol) {
			t.Errorf("open %s: %v, want ErrProtocol", open, err)
		}
	}
	// A hello of another version.
	if q, err := ParseRequest([]byte(`{"id":1,"op":"hello","versions":[8,9],"more":{"x":[1]}}`)); err != nil || !slices.Equal(q.Versions, []int{8, 9}) {
		t.Errorf("%+v, %v", q, err)
	}
	for _, bad := range []string{`{"id":1,"op":"link","more":1}`, `{"id":1,"op":"hello","more":1}`, `{"id":1,"op":"hello","versions":[8],"more":1}{}`, `{"op":"hello","id":"x","versions":[8]}`} {
		nstest.WantErr(t, bad, nstest.Err(ParseRequest([]byte(bad))), ErrProtocol)
	}
	both := `{"id":1,"op":"wait","handle":1,"local":{"Host":"","Disc":""}}`
	nstest.ErrorIf(t, nstest.Err(ParseRequest([]byte(both))) == nil, "a wait for two things: no error")
}

// An error keeps its identity in a message.
func TestErrorOnItsWay(t *testing.T) {
	for _, err := range []error{
		kagent.ErrNoMatch, kagent.ErrUnreachable, kagent.ErrListening, kagent.ErrNoVI, kagent.ErrQueueInUse,
		kagent.ErrState, kagent.ErrCancelled, kagent.ErrVanished, ErrQuota, ErrQueueQuota, ErrNotServed, ErrToken, unix.EBUSY,
		fs.ErrClosed, context.Canceled,
	} {
		wrapped := &kagent.OpError{Op: "open", Link: "via0", Err: fmt.Errorf("because: %w", err)}
		b, merr := json.Marshal(NewError(wrapped))
		nstest.Must(t, merr)
		var e *Error
		nstest.Must(t, json.Unmarshal(b, &e))
		want := err
		if err == fs.ErrClosed {
			continue // kagent.ErrClosed is what goes on the way
		}
		nstest.ErrorIf(t, !errors.Is(e, want) || e.Error() != wrapped.Error(), "%v arrives as %v", wrapped, e)
		nstest.ErrorIf(t, kagent.Unavailable(e) != kagent.Unavailable(wrapped),
			"%v: unavailable %v there, %v here", wrapped, kagent.Unavailable(wrapped), kagent.Unavailable(e))
	}
	e := NewError(fmt.Errorf("x: %w", &kagent.RejectedError{Reason: wire.CMReasonQoS}))
	var r *kagent.RejectedError
	nstest.ErrorIf(t, !errors.As(e, &r) || r.Reason != wire.CMReasonQoS || !errors.Is(e, kagent.ErrRejected), "rejection: %v", e)
	nstest.ErrorIf(t, !kagent.Unavailable(NewError(unix.EPERM)) || NewError(nil) != nil, "EPERM is no lack of privilege, or no error is one")
}

// pair makes two ends of a connection.
func pair(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		nstest.Must(t, err)
		f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends
}

// An agent that sends more descriptors than a message may have does not fill the program's table with them: too
// many at once cause an error instead of the reply, too many in all end the connection.
func TestTooManyFiles(t *testing.T) {
	open := func() (n int) {
		all, err := os.ReadDir("/proc/self/fd")
		nstest.Must(t, err)
		return len(all)
	}
	ends := pair(t)
	r := Reader{C: ends[1]}
	before := open()
	own, err := ends[0].File()
	nstest.Must(t, err)
	all := make([]*os.File, MaxFiles+1)
	for i := range all {
		all[i] = own
	}
	nstest.Must(t, WriteReply(ends[0], &Reply{ID: 7, VI: 9}, all...))
	reply, files, err := r.ReadReply()
	if err != nil || len(files) != 0 || reply.ID != 7 || reply.VI != 0 || reply.Error == nil || !errors.Is(reply.Error, unix.EMFILE) {
		t.Errorf("%+v, %d files, %v", reply, len(files), err)
	}
	// The next one is not meant.
	nstest.Must(t, WriteReply(ends[0], &Reply{ID: 8}, all[:MaxFiles]...))
	reply, files, err = r.ReadReply()
	nstest.ErrorIf(t, err != nil || len(files) != MaxFiles || reply.ID != 8 || reply.Error != nil, "%+v, %d files, %v", reply, len(files), err)
	for _, f := range files {
		f.Close()
	}
	b, err := Encode(&Reply{ID: 9}, MaxReply)
	nstest.Must(t, err)
	fd := int(own.Fd())
	for i := range b {
		if _, _, err := ends[0].WriteMsgUnix(b[i:i+1], unix.UnixRights(fd, fd), nil); err != nil {
			t.Fatal(err)
		}
	}
	_, files, err = r.ReadReply()
	nstest.ErrorIf(t, !errors.Is(err, ErrProtocol) || len(files) > 2*MaxFiles, "%d files, %v", len(files), err)
	for _, f := range files {
		f.Close()
	}
	own.Close()
	nstest.Equal(t, "open descriptors", open(), before)
}

// A reply and its descriptors arrive together, with any messages before and after.
func TestReplyWithFiles(t *testing.T) {
	ends := pair(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	nstest.Must(t, err)
	defer file.Close()
	go func() {
		_ = WriteReply(ends[0], &Reply{ID: 1})
		_ = WriteReply(ends[0], &Reply{ID: 2, Opened: &Opened{Token: bytes.Repeat([]byte("x"), 300_000)}}, file, file)
		_ = WriteReply(ends[0], &Reply{ID: 3})
	}()
	r := Reader{C: ends[1]}
	got := map[uint64]int{}
	for range 3 {
		reply, files, err := r.ReadReply()
		nstest.Must(t, err)
		got[reply.ID] = len(files)
		for _, f := range files {
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("flags %#x, %v: not close-on-exec", flags, err)
			}
			f.Close()
		}
	}
	nstest.Equal(t, "files by reply, -want +got", cmp.Diff(map[uint64]int{1: 0, 2: 2, 3: 0}, got), "")
	// A length that is out of bounds is refused before anything is read.
	for _, head := range [][]byte{{0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}} {
		nstest.WantErr(t, fmt.Sprintf("%x", head), nstest.Err(ReadRequest(bytes.NewReader(head), nil)), ErrProtocol)
	}
}

// The handshake of a connection with a pre-shared key passes unchanged, with any bytes.
func TestHandshakePasses(t *testing.T) {
	odd := kagent.Opaque([]byte{0, 0xff, 0xc0, '"', '\\', 0x80, '\n'})
	q := Request{
		ID: 1, Op: OpAccept, Handle: 2, Offer: &kagent.Offer{VI: 1, Handshake: odd, Confirm: odd + odd}, Proof: []byte(odd),
	}
	b, err := Encode(q, MaxRequest)
	nstest.Must(t, err)
	r, err := ReadRequest(bytes.NewReader(b), make([]byte, MaxRequest))
	nstest.ErrorIf(t, err != nil || !reflect.DeepEqual(q, r), "%+v, %v, want %+v", r, err, q)
}

// shape writes down what of a type a message has: names, tags and kinds, those of other
// packages' structures included.
func shape(t reflect.Type, open map[reflect.Type]bool) string {
	_, text := reflect.New(t).Interface().(encoding.TextMarshaler)
	_, own := reflect.New(t).Interface().(json.Marshaler)
	switch {
	case text || own || open[t]:
		return t.String()
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return t.Kind().String() + " " + shape(t.Elem(), open)
	case t.Kind() == reflect.Map:
		return "map " + shape(t.Key(), open) + " " + shape(t.Elem(), open)
	case t.Kind() != reflect.Struct:
		return t.Kind().String()
	}
	open[t] = true
	defer delete(open, t)
	s := "{"
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
			s += fmt.Sprintf("%s %q %s;", f.Name, f.Tag.Get("json"), shape(f.Type, open))
		}
	}
	return s + "}"
}

// Program and agent may be of different builds; only the version reveals that. A change of a message's
// contents, even of a field's name in a structure of another package, must raise the version, unless both sides
// understand each other all the same, and must put the new sum here.
func TestShapeHasAVersion(t *testing.T) {
	const version, sum = 7, "dbce0ba0eb950aff"
	s := shape(reflect.TypeFor[Request](), map[reflect.Type]bool{}) + shape(reflect.TypeFor[Reply](), map[reflect.Type]bool{})
	if got := fmt.Sprintf("%.8x", sha256.Sum256([]byte(s))); got != sum || Version != version {
		t.Errorf("version %d with the sum %s, want version %d with %s; messages hold\n%s", Version, got, version, sum, s)
	}
}
