package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

func TestMask(t *testing.T) {
	m := &Mask{Names: []string{"db7.example.org", "db7", "a"}}
	for _, tc := range [][2]string{
		{"eth0 52:54:00:ab:CD:ef up", "eth0 mac-1 up"},
		{"52:54:00:AB:cd:ef and 52-54-00-00-00-01", "mac-1 and mac-2"},
		{"BOOTIF=52-54-00-ab-cd-ef", "BOOTIF=mac-1"},
		{"00:00:00:00:00:00", "00:00:00:00:00:00"},
		{"10.77.0.1:4793 to 10.77.0.2, 10.77.0.1", "ip-1:4793 to ip-2, ip-1"},
		{"127.0.0.1 0.0.0.0 ::1 ::", "127.0.0.1 0.0.0.0 ::1 ::"},
		{"::127.0.0.1 ::0.0.0.0", "::127.0.0.1 ::0.0.0.0"},
		{"fe80::5054:ff:fe00:1%eth0, 2001:db8::1/64", "ip-3%eth0, ip-4/64"},
		{"2001:0db8:0:0::1", "ip-4"},
		{"::ffff:10.9.8.7", "ip-5"},
		{"::0:127.0.0.1 and ::1:2:10.0.0.1", "ip-6 and ip-7"},
		{"2001:db8::/32 via addr:2001:db8::1:", "ip-8/32 via addr:ip-4:"},
		{"host DB7.example.org, db7: a word", "host host-1, host-2: a word"},
		{"root=UUID=0f0e0d0c-1111-2222-3333-444455556666", "root=UUID=uuid-1"},
		{"ip=10.77.0.1::10.77.0.2::name:eth0 ip=10.77.0.1::10.77.0.2::db7:eth0", "ip=ip-1::ip-2::name:eth0 ip=ip-1::ip-2::host-2:eth0"},
		{"10.77.0.1:2001:db8::1 of 10.77.0.2::", "ip-1:ip-4 of ip-2::"},
		{"3: enx525400abcdef: wlx0a0b0c0d0e0f", "3: enx-mac-1: wlx-mac-3"},
		{"source:2001:db8:1:2:3:4:5:6 remote:2001:db8::1, iface:via0:2001:db8::1", "source:ip-9 remote:ip-4, iface:via0:ip-4"},
		{"dead:2001:db8:1:2:3:4:5:6 add:2001:db8:1:2:3:4:5:6: bed:1.2.3.4", "dead:ip-9 add:ip-9: bed:ip-10"},
		// What only looks like it.
		{"kernel 6.18.15 at 12:34:56, 0000:00:1f.6, version 1.2.3, 256.1.1.1, enx52, enp0s31f6", "kernel 6.18.15 at 12:34:56, 0000:00:1f.6, version 1.2.3, 256.1.1.1, enx52, enp0s31f6"},
		{"rx: 12 tx: 3", "rx: 12 tx: 3"},
	} {
		if got := m.Apply(tc[0]); got != tc[1] {
			t.Errorf("%q: %q, want %q", tc[0], got, tc[1])
		}
	}
}

// A write error is reported once, for any number of files.
func TestArchiveUnwritten(t *testing.T) {
	r, w := io.Pipe()
	r.CloseWithError(io.ErrShortWrite)
	a := New(w, &Mask{}, time.Now())
	for range 3 {
		text := make([]byte, 1<<17) // more than is kept back to be compressed together
		rand.Read(text)
		a.Add("file", hex.EncodeToString(text))
	}
	if err := a.Close(); !errors.Is(err, io.ErrShortWrite) || err.Error() != io.ErrShortWrite.Error() {
		t.Errorf("got %v", err)
	}
	r, w = io.Pipe()
	go io.ReadFull(r, make([]byte, 10)) // the head of gzip; Close writes the rest
	a = New(w, &Mask{}, time.Now())
	a.Add("short", "y")
	r.CloseWithError(io.ErrShortWrite)
	nstest.WantErr(t, "a short report", a.Close(), io.ErrShortWrite)
}

// No address remains, anywhere in a text.
func TestMaskAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		address := rapid.OneOf(
			rapid.StringMatching(`52:54:[0-9a-f]{2}:[0-9a-f]{2}:[0-9a-f]{2}:[0-9a-f]{2}`),
			rapid.StringMatching(`10\.[1-9]\d\.[1-9]\d\.[1-9]\d`),
			rapid.StringMatching(`2001:db8:[1-9a-f]{4}::[1-9a-f]{4}`),
		).Draw(t, "address")
		before := rapid.SampledFrom([]string{"", " ", "=", "\"", "(", "\t", "/", ",", "@"}).Draw(t, "before")
		after := rapid.SampledFrom([]string{"", " ", "\"", ")", "\n", "/24", ",", "%eth0", "."}).Draw(t, "after")
		if got := new(Mask).Apply("x" + before + address + after); before != "" && strings.Contains(got, address) {
			t.Fatalf("%q", got)
		}
	})
}

// report is the files of an archive, by their names in its directory.
func report(t *testing.T, fill func(*Archive), names ...string) map[string]string {
	t.Helper()
	var b bytes.Buffer
	a := New(&b, &Mask{Names: names}, time.Unix(1, 0))
	fill(a)
	nstest.Must(t, a.Close())
	zip, err := gzip.NewReader(&b)
	nstest.Must(t, err)
	files := make(map[string]string)
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		nstest.Must(t, err)
		text, err := io.ReadAll(r)
		nstest.Must(t, err)
		name, ok := strings.CutPrefix(h.Name, "via-xdp-report/")
		nstest.ErrorIf(t, !ok, "%s is elsewhere", h.Name)
		files[name] = string(text)
	}
}

func TestReport(t *testing.T) {
	root := fstest.MapFS{
		"proc/version":                                       {Data: []byte("Linux version 6.18.15 (secret-host)\n")},
		"proc/cmdline":                                       {Data: []byte("ip=10.1.2.3 quiet\n")},
		"sys/class/net/eth0/mtu":                             {Data: []byte("1500\n")},
		"sys/class/net/eth0/queues/rx-0/rps_cpus":            {Data: []byte("3\n")},
		"sys/class/net/eth0/device/msi_irqs/42":              {Data: []byte("msix\n")},
		"proc/irq/42/effective_affinity_list":                {Data: []byte("1\n")},
		"sys/devices/system/cpu/cpu0/cpuidle/state0/name":    {Data: []byte("POLL\n")},
		"sys/devices/system/cpu/cpu0/cpuidle/state0/latency": {Data: []byte("0\n")},
		"sys/devices/system/cpu/cpu0/cpuidle/state0/disable": {Data: []byte("0\n")},
	}
	files := report(t, func(a *Archive) {
		a.Host(root)
		a.NIC(root, "eth0", nil, map[string]string{
			"statistics": table(map[string]uint64{"rx_queue_1_drops": 7, "rx_queue_0_drops": 0}, nil),
			"offloads":   table[bool](nil, errors.New("operation not supported")),
			"settings":   table(map[string]string{"driver": "igb"}, errors.New("pause: not supported")),
		})
		a.Add("results/long", strings.Repeat("x", MaxFile+1))
		a.Add("info", "mac 52:54:00:00:00:01 at 10.1.2.3")
	}, "secret-host")
	want := map[string]string{
		"host/proc/version":   "Linux version 6.18.15 (host-1)\n",
		"host/proc/cmdline":   "ip=ip-1 quiet\n",
		"host/proc/cpuinfo":   "(file does not exist)",
		"host/c-states":       "POLL: latency 0 us, disabled 0\n",
		"nic/eth0/interrupts": "42: CPUs 1\n",
		"nic/eth0/statistics": "rx_queue_0_drops: 0\nrx_queue_1_drops: 7\n",
		"nic/eth0/offloads":   "(operation not supported)\n",
		"nic/eth0/settings":   "(pause: not supported)\ndriver: igb\n",
		"info":                "mac mac-1 at ip-1",
	}
	for name, text := range want {
		nstest.Same(t, name, files[name], text)
	}
	if s := files["nic/eth0/sysfs"]; !strings.Contains(s, "mtu: 1500\n") || !strings.Contains(s, "rx-0/rps_cpus: 3\n") {
		t.Errorf("sysfs: %s", s)
	}
	if s := files["results/long"]; len(s) > MaxFile+100 || !strings.HasSuffix(s, "(cut off here)\n") {
		t.Errorf("a long file has %d bytes", len(s))
	}
}

// The kernel's command line may contain secrets of the boot software: values of unknown parameters are
// left out.
func TestCommandLine(t *testing.T) {
	for _, tc := range [][2]string{
		{"BOOT_IMAGE=/vmlinuz-6.18 root=LABEL=alice ro isolcpus=2,3 intel_idle.max_cstate=1 quiet\n",
			"BOOT_IMAGE=/vmlinuz-6.18 root=(left out) ro isolcpus=2,3 intel_idle.max_cstate=1 quiet\n"},
		{"ds=nocloud;s=https://user:pass@host/ token=\"a secret of words\" systemd.setenv=PASSWORD=hunter2 nosmt",
			"ds=(left out) token=(left out) systemd.setenv=(left out) nosmt\n"},
		{`quiet "password=a b" hunter2 -- hunter2`, "quiet (left out) (left out) (left out) (left out)\n"},
		{`quiet token="no end of it`, "quiet token=(left out)\n"},
		{"intel_idlex=secret", "intel_idlex=(left out)\n"},
	} {
		if got := commandLine(tc[0]); got != tc[1] {
			t.Errorf("%q: %q, want %q", tc[0], got, tc[1])
		}
		root := fstest.MapFS{"proc/cmdline": {Data: []byte(tc[0])}}
		files := report(t, func(a *Archive) { a.Host(root) })
		nstest.Equal(t, "in a report", files["host/proc/cmdline"], tc[1])
	}
}

// A report does not have the board's serial number, from which a MAC address may be computed.
func TestSerialNumber(t *testing.T) {
	const before, behind = "processor\t: 0\nHardware\t: BCM2835\nSerial\t\t: ", "\nModel\t\t: Raspberry Pi 3\n"
	root := fstest.MapFS{"proc/cpuinfo": {Data: []byte(before + "00000000a1b2c3d4" + behind)}}
	files := report(t, func(a *Archive) { a.Host(root) })
	nstest.Equal(t, "cpuinfo", files["host/proc/cpuinfo"], before+"(left out)"+behind)
	for name, text := range files {
		nstest.ErrorIf(t, strings.Contains(text, "a1b2c3d4"), "it is in %s", name)
	}
}

// A text that is too long is not cut in the middle of an address, since no mask would match what remains.
func TestCutAddress(t *testing.T) {
	before := strings.Repeat("x ", MaxFile/2)
	for _, address := range []string{"52:54:00:ab:cd:ef", "10.77.100.101", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", "secret-host"} {
		for left := 1; left <= len(address); left++ {
			text := cut(before[:MaxFile-left-1] + " " + address + " and more")
			if end := strings.TrimLeft(text[len(text)-300:], "x "); end != "\n(cut off here)\n" && left < len(address) ||
				len(text) < MaxFile-len(address)-1 {
				t.Errorf("%s, cut after %d bytes: the end is %q", address, left, end)
			}
		}
	}
	files := report(t, func(a *Archive) { a.Add("long", before[:MaxFile-9]+" 52:54:00:ab:cd:ef") })
	if text := files["long"]; text == "" || strings.Contains(text, "52:") {
		t.Errorf("the end is %q", text[max(0, len(text)-40):])
	}
}

// Files of the same name do not overwrite each other when the archive is unpacked.
func TestSameNames(t *testing.T) {
	files := report(t, func(a *Archive) {
		for i, name := range []string{"results/2-a", "results/a", "results/a", "results/a", "results/10.0.0.1", "results/ip-1"} {
			a.Add(name, string(rune('0'+i)))
		}
	})
	nstest.Same(t, "files", files, map[string]string{
		"results/2-a": "0", "results/a": "1", "results/3-a": "2", "results/4-a": "3", "results/ip-1": "4", "results/2-ip-1": "5",
	})
}

// FuzzMask: in any text, no separate address remains, and the same text is masked the same.
func FuzzMask(f *testing.F) {
	f.Add("eth0 52:54:00:ab:CD:ef 10.77.0.1:4793 10.77.0.2 [2001:db8::1]:80", "db7")
	f.Add("::ffff:10.9.8.7 fe80::1%eth0 127.0.0.1 ::1", "ip")
	f.Add("0f0e0d0c-1111-2222-3333-444455556666 52-54-00-00-00-01", "host-1")
	f.Add("1:2:3:4:5:6:7:8:: 1::", "")
	f.Add("::a:::1.2.3.4 1::2:10.0.0.1.", "a::b")
	f.Add("::127.0.0.1", "")
	f.Add("::0:127.0.0.1 ::1:2:10.0.0.1", "")
	word := regexp.MustCompile(`[\pL\pN_:.]+`)
	given := regexp.MustCompile(`(?:uuid|mac|ip|host)-\d+`) // the digits and what follows may look like an address
	f.Fuzz(func(t *testing.T, text, name string) {
		m := &Mask{Names: []string{name}}
		masked := m.Apply(text)
		left := word.FindAllString(given.ReplaceAllString(masked, "_"), -1)
		for _, w := range word.FindAllString(text, -1) {
			a, err := netip.ParseAddr(w)
			own, _ := netip.ParseAddr(strings.TrimPrefix(w, "::")) // one of IPv4 behind colons is masked as such
			address := err == nil && !a.IsUnspecified() && !a.IsLoopback() && !own.IsLoopback()
			mac := macForm.FindString(w) == w && strings.Trim(w, "0:") != ""
			nstest.ErrorIf(t, (address || mac) && slices.Contains(left, w),
				"%q: %q comes through in %q", text, w, masked)
		}
		if again := m.Apply(text); again != masked {
			t.Errorf("%q is %q, and then %q", text, masked, again)
		}
	})
}
