package capture_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/capture"
)

const dissector = "../../../contrib/wireshark/via.lua"

// dissect has tshark take frames apart: the fields of each, by name.
func dissect(t *testing.T, frames [][]byte) []map[string][]string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		nstest.Lacks(t, "tshark is missing (apt-get install tshark)")
	}
	path := filepath.Join(t.TempDir(), "frames.pcapng")
	out, err := os.Create(path)
	nstest.Must(t, err)
	defer out.Close()
	f, err := capture.NewFile(out, []capture.Source{{Interface: "eth0"}}, 65535)
	nstest.Must(t, err)
	for _, b := range frames {
		nstest.Must(t, f.Write(0, capture.Frame{Time: time.Unix(1, 0), Len: len(b), Data: b}))
	}
	nstest.Must(t, f.Close())
	// On another port the dissector must be asked for.
	cmd := exec.Command(tshark, "-X", "lua_script:"+dissector, "-d", "udp.port==14793,via", "-r", path, "-T", "json", "-J", "via", "--no-duplicate-keys")
	text, err := cmd.Output()
	nstest.FatalIf(t, err != nil, "%v: %v", cmd, err)
	var packets []struct {
		Source struct {
			Layers map[string]json.RawMessage `json:"layers"`
		} `json:"_source"`
	}
	nstest.Must(t, json.Unmarshal(text, &packets))
	var all []map[string][]string
	for _, p := range packets {
		fields := map[string][]string{}
		collect(fields, p.Source.Layers["via"])
		all = append(all, fields)
	}
	nstest.FatalIf(t, len(all) != len(frames), "tshark shows %d frames of %d", len(all), len(frames))
	return all
}

// collect flattens the tree of fields.
func collect(into map[string][]string, tree json.RawMessage) {
	var sub map[string]json.RawMessage
	if json.Unmarshal(tree, &sub) != nil {
		var list []json.RawMessage
		if json.Unmarshal(tree, &list) == nil {
			for _, x := range list {
				collect(into, x)
			}
		}
		return
	}
	for name, v := range sub {
		var s string
		var many []string
		switch {
		case json.Unmarshal(v, &s) == nil:
			into[name] = append(into[name], s)
		case json.Unmarshal(v, &many) == nil:
			into[name] = append(into[name], many...)
		default:
			collect(into, v)
		}
	}
}

// want compares fields with what package wire reads.
func want(t *testing.T, frame string, got map[string][]string, fields map[string]string) {
	t.Helper()
	for name, value := range fields {
		if strings.Join(got[name], " ") != value {
			t.Errorf("%s: %s is %q, want %q", frame, name, got[name], value)
		}
	}
}

func colons(b []byte) string {
	var s []string
	for _, x := range b {
		s = append(s, fmt.Sprintf("%02x", x))
	}
	return strings.Join(s, ":")
}

// The dissector reads the golden frames as package wire does.
func TestDissectorGolden(t *testing.T) {
	names, frames := goldenFrames(t)
	var list [][]byte
	for _, n := range names {
		list = append(list, frames[n])
	}
	for i, got := range dissect(t, list) {
		var p wire.Packet
		nstest.Must(t, p.Decode(list[i]))
		h := p.Header
		fields := map[string]string{
			"via.version": "0xa3", "via.kind": fmt.Sprint(uint8(h.Kind)), "via.flags": fmt.Sprintf("0x%04x", uint16(h.Flags)),
			"via.vi": fmt.Sprintf("0x%08x", h.VI), "via.key": fmt.Sprintf("0x%016x", h.Key), "via.seq": fmt.Sprint(h.Seq),
			"via.ack": fmt.Sprint(h.Ack), "via.window": fmt.Sprint(h.Window), "via.len": fmt.Sprint(h.Length), "via.crc.status": "good",
		}
		if h.Kind == wire.KindAck || h.Kind == wire.KindProbe {
			fields["via.seq"] = ""
		}
		for name, flag := range map[string]wire.Flags{
			"first": wire.FlagFirst, "last": wire.FlagLast, "immediate": wire.FlagImmediate, "ack_now": wire.FlagAckNow,
			"ack_soon": wire.FlagAckSoon, "again": wire.FlagAgain,
		} {
			fields["via.flags."+name] = "0"
			if h.Flags&flag != 0 {
				fields["via.flags."+name] = "1"
			}
		}
		switch h.Kind {
		case wire.KindError:
			fields["via.reason"] = fmt.Sprint(h.Immediate)
		case wire.KindRead:
			fields["via.read.len"] = fmt.Sprint(h.Immediate)
			fields["via.remote.addr"] = fmt.Sprintf("0x%016x", h.RemoteAddr)
		case wire.KindReadData:
			fields["via.read.seq"], fields["via.read.offset"] = fmt.Sprint(h.Immediate), fmt.Sprint(h.RemoteAddr)
		case wire.KindAck:
			var from, to []string
			for k := range len(p.Payload) / wire.RangeLen {
				r := wire.GetRange(p.Payload, k)
				from, to = append(from, fmt.Sprint(r.Start)), append(to, fmt.Sprint(r.End))
			}
			fields["via.range.from"], fields["via.range.to"] = strings.Join(from, " "), strings.Join(to, " ")
		case wire.KindProbe, wire.KindClose:
			fields["via.immediate"] = ""
		default:
			fields["via.immediate"] = fmt.Sprintf("0x%08x", h.Immediate)
			fields["via.remote.handle"] = fmt.Sprintf("0x%08x", h.RemoteHandle)
			fields["via.data"] = colons(p.Payload)
		}
		want(t, names[i], got, fields)
	}
}

func udp(t *testing.T, payload []byte) []byte {
	t.Helper()
	tmpl, err := wire.NewTemplate(wire.Link{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), PortOffset: wire.Ports - 1})
	nstest.Must(t, err)
	b := make([]byte, tmpl.Len()+len(payload))
	copy(tmpl.Put(b, len(payload)), payload)
	return b
}

// Connection management, several messages in a frame, damage, headers alone
// under the checksum, and another version.
func TestDissectorMore(t *testing.T) {
	text, err := os.ReadFile("../../base/wire/testdata/cm.hex")
	nstest.Must(t, err)
	var list [][]byte
	var cms []wire.CM
	for line := range strings.Lines(string(text)) {
		b, err := hex.DecodeString(strings.TrimSpace(line))
		nstest.Must(t, err)
		m, err := wire.ParseCM(b)
		nstest.Must(t, err)
		list, cms = append(list, udp(t, b)), append(cms, m)
	}
	pack := make([]byte, wire.HeaderLen)
	pack = binary.BigEndian.AppendUint32(pack, 3<<16|0x0004) // three bytes, immediate data
	pack = append(pack, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3)
	pack = binary.BigEndian.AppendUint32(pack, 2<<16|0x0100) // an RDMA write of two
	pack = append(pack, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 9, 4, 5)
	h := wire.Header{Kind: wire.KindPack, VI: 7, Length: uint16(len(pack) - wire.HeaderLen)}
	h.Put(pack)
	wire.PutChecksum(pack)
	damaged := append([]byte(nil), pack...)
	damaged[len(damaged)-1]++
	bare := append([]byte(nil), pack...)
	wire.PutHeaderChecksum(bare)
	other := append([]byte(nil), pack...)
	other[0]++
	sealed := make([]byte, 80)
	wire.PutSealed(sealed, append([]byte(nil), pack...), 7, 0x123456789)
	list = append(list, udp(t, pack), udp(t, damaged), udp(t, bare), udp(t, other), udp(t, sealed))

	got := dissect(t, list)
	for i, m := range cms {
		const secure, hasCookie = 1 << 4, 1 << 5 // on the wire alone
		if len(m.Handshake) > 0 {
			m.Flags |= secure
		}
		key, cookie := fmt.Sprintf("0x%016x", m.Key), ""
		if m.Cookie != 0 {
			cookie = fmt.Sprintf("0x%016x", m.Cookie)
		}
		reason, offset := fmt.Sprint(uint8(m.Reason)), ""
		if m.Type == wire.CMRequest || m.Type == wire.CMAccept {
			reason, offset = "", fmt.Sprint(m.PortOffset)
		}
		switch m.Type {
		case wire.CMRequest:
			if m.Cookie != 0 {
				m.Flags |= hasCookie
			}
		case wire.CMRetry, wire.CMConfirm:
			key, cookie = "", fmt.Sprintf("0x%016x", m.Cookie)
		}
		fields := map[string]string{
			"via.cm.type": fmt.Sprint(uint8(m.Type)), "via.cm.id": fmt.Sprintf("0x%016x", m.ID), "via.cm.vi": fmt.Sprintf("0x%08x", m.VI),
			"via.cm.key": key, "via.cm.cookie": cookie, "via.cm.seq": fmt.Sprint(m.Seq), "via.cm.window": fmt.Sprint(m.Window),
			"via.cm.max_payload": fmt.Sprint(m.MaxPayload), "via.cm.max_transfer": fmt.Sprint(m.MaxTransfer),
			"via.cm.level": fmt.Sprint(m.Level), "via.cm.reason": reason, "via.cm.port_offset": offset, "via.cm.flags": fmt.Sprintf("0x%04x", m.Flags),
			"via.cm.handshake": colons(m.Handshake), "via.cm.from": colons(m.From), "via.cm.to": colons(m.To), "via.crc.status": "good",
		}
		want(t, m.Type.String(), got[i], fields)
	}
	got = got[len(cms):]
	want(t, "pack", got[0], map[string]string{
		"via.record.len": "3 2", "via.immediate": "0xdeadbeef", "via.remote.addr": "0x0000000000001234",
		"via.remote.handle": "0x00000009", "via.data": "01:02:03 04:05", "via.crc.status": "good",
	})
	want(t, "damaged", got[1], map[string]string{"via.crc.status": "bad"})
	want(t, "bare", got[2], map[string]string{"via.crc.status": "good, of the header"})
	want(t, "sealed", got[4], map[string]string{
		"via.kind": "10", "via.vi": "0x00000007", "via.sealed.epoch": "7", "via.sealed.number": fmt.Sprint(0x123456789), "via.crc": "",
	})
	want(t, "other version", got[3], map[string]string{"via.version": "0xa4", "via.kind": ""})
}
