//go:build cgo

package main

import (
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// words are the variables that are one of some words.
var words = map[string][]string{
	"VIA_MULTIBUFFER": {"0", "1"}, "VIA_PACKING": {"0", "1"}, "VIA_CHECKSUM": {"0", "1"}, "VIA_POLL_PAUSE": {"0", "1"},
	"VIA_SEGMENTATION": {"0", "1"},
	"VIA_MODE":         {"auto", "generic", "native", "zero-copy"}, "VIA_STEERING": {"rules", "rss", "off", "all"},
	"VIA_HUGEPAGES": {"auto", "require", "avoid"}, "VIA_CONGESTION": {"default", "delay", "cubic"},
}

// numbers are those that are a number, and how much that is at most.
var numbers = map[string]int64{
	"VIA_QUEUE": 1<<31 - 1, "VIA_ARENA": 1 << 40, "VIA_RX_CHUNKS": 1 << 24, "VIA_TX_CHUNKS": 1 << 24,
	"VIA_SILENCE": 1<<31 - 1, "VIA_MAX_DISCRIMINATOR": vipl.MaxDiscriminatorLen,
	"VIA_ADDRESS_LEN": 6,
}

// variables are all that are an option of a NIC.
var variables = slices.Sorted(slices.Values(slices.Concat(
	[]string{"VIA_PSK"}, slices.Collect(maps.Keys(words)), slices.Collect(maps.Keys(numbers)))))

// FuzzEnvironment: a variable of the environment is valid, or the error names it with its value. Accepted
// values are within their bounds. The key's value is the content of a file.
func FuzzEnvironment(f *testing.F) {
	at := func(name string) uint8 { return uint8(slices.Index(variables, name)) }
	for _, c := range [][2]string{
		{"VIA_QUEUE", "-1"}, {"VIA_QUEUE", "2147483647"}, {"VIA_ARENA", "1099511627777"}, {"VIA_ARENA", "9223372036854775808"},
		{"VIA_RX_CHUNKS", "+64"}, {"VIA_TX_CHUNKS", " 64"}, {"VIA_SILENCE", "1_000"}, {"VIA_MAX_DISCRIMINATOR", "064"},
		{"VIA_MODE", "zero-copy"}, {"VIA_STEERING", "rss"}, {"VIA_HUGEPAGES", "some"}, {"VIA_ADDRESS_LEN", "06"}, {"VIA_ADDRESS_LEN", "4"},
		{"VIA_PACKING", "true"}, {"VIA_PSK", strings.Repeat("k", 32)}, {"VIA_PSK", "short"}, {"VIA_PSK", strings.Repeat("k", 31)},
		{"VIA_QUEUE", "one"}, {"VIA_ARENA", "1M"}, {"VIA_RX_CHUNKS", "9223372036854775807"}, {"VIA_TX_CHUNKS", "16777217"},
		{"VIA_SILENCE", "9223372036855"}, {"VIA_MULTIBUFFER", "no"}, {"VIA_CHECKSUM", "off"}, {"VIA_POLL_PAUSE", "-"},
		{"VIA_MODE", "fast"}, {"VIA_STEERING", "somehow"}, {"VIA_MAX_DISCRIMINATOR", "65"}, {"VIA_ADDRESS_LEN", "six"},
	} {
		f.Add(at(c[0]), c[1])
	}
	key := filepath.Join(f.TempDir(), "key")
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		name := variables[int(which)%len(variables)]
		good := value == "" || slices.Contains(words[name], value)
		most, number := numbers[name]
		n := new(big.Int)
		if number && value != "" {
			_, good = n.SetString(value, 10)
			good = good && n.Sign() >= 0 && n.Cmp(big.NewInt(most)) <= 0 && (name != "VIA_ADDRESS_LEN" || n.Int64() == most)
		}
		if name == "VIA_PSK" && value != "" {
			good = len(value) >= 32 && len(value) <= 1<<20
			nstest.Must(t, os.WriteFile(key, []byte(value), 0o600))
			value = key
		}
		if strings.ContainsRune(value, 0) {
			return // no environment has it
		}
		unset(t)
		t.Setenv(name, value)
		opts, has, err := options()
		nstest.FatalIf(t, (err == nil) != good, "%s=%q: %v", name, value, err)
		if err != nil && (!strings.HasPrefix(err.Error(), "$"+name) || strings.ContainsAny(err.Error(), "\n\x1b")) {
			t.Fatal(err)
		}
		nstest.FatalIf(t, len(opts) > 1 || err == nil && value == "" && len(opts) != 0,
			"%s=%q: %d options", name, value, len(opts))
		if has.host != 0 && has.host != 6 && err == nil || has.discriminator < 0 || has.discriminator > vipl.MaxDiscriminatorLen {
			t.Fatalf("%s=%q: room %+v", name, value, has)
		}
		var s settings
		if got := s.number(name, int(most)); number && good && int64(got) != n.Int64() || got < 0 || int64(got) > most || got != 0 && s.err != nil {
			t.Fatalf("%s=%q is %d, %v", name, value, got, s.err)
		}
	})
}

// FuzzDevice: a device's name stands for an interface that the variable names, trimmed, with the exact name
// first; or for one of the machine's candidates; or for itself.
func FuzzDevice(f *testing.F) {
	for _, c := range [][2]string{
		{"", "/dev/clanvi0"}, {"eth1", "/dev/clanvi0"}, {"clanvi0=a,clanvi1=b,*=c", "/dev/clanvi0"}, {"*=c, /dev/clanvi0 = a", "/dev/clanvi0"},
		{"clanvi0=,=x,,", "clanvi0"}, {"", "VINIC99999999999999999999"}, {"", "via_eth0"}, {"", "_"}, {"a=b=c", "a"},
	} {
		f.Add(c[0], c[1])
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	all := []net.Interface{
		{Name: "lo", Flags: net.FlagUp | net.FlagLoopback}, {Name: "down", HardwareAddr: mac},
		{Name: "eth0", Flags: net.FlagUp, HardwareAddr: mac}, {Name: "nic1", Flags: net.FlagUp, HardwareAddr: mac},
	}
	f.Fuzz(func(t *testing.T, setting, name string) {
		base := filepath.Base(name)
		to, ok := configured(setting, name, base)
		if ok != (to != "") || !strings.Contains(setting, to) || to != strings.TrimSpace(to) || strings.Contains(to, ",") {
			t.Fatalf("%q: %q is %q, %v", setting, name, to, ok)
		}
		if plain := "if0"; !strings.ContainsAny(name, ",=") && name != "" && name == strings.TrimSpace(name) && name != "*" && base != "*" {
			for _, form := range []string{"%s=%s", " %s = %s ", "*=other,%s=%s", "%s=%s,*=other,third"} {
				set := fmt.Sprintf(form, name, plain)
				if got, ok := configured(set, name, base); got != plain || !ok {
					t.Fatalf("%q: %q is %q, %v", set, name, got, ok)
				}
			}
		}
		got := choose(base, all)
		if i := slices.IndexFunc(all, func(i net.Interface) bool { return i.Name == got }); i < 0 || i < 2 && base != got && !strings.HasSuffix(base, "_"+got) {
			t.Fatalf("%q is %q", base, got)
		}
		if alone := choose(base, nil); alone != base {
			t.Fatalf("%q is %q where there is no interface", base, alone)
		}
	})
}
