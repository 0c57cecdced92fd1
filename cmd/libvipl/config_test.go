//go:build cgo

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// unset takes the variables of a NIC out of the environment until the test ends.
func unset(t *testing.T) {
	t.Helper()
	for _, name := range variables {
		t.Setenv(name, "")
	}
}

// A variable with a value that makes sense is an option, or room for addresses.
func TestOptions(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	nstest.Must(t, os.WriteFile(key, make([]byte, 32), 0o600))
	usual := room{discriminator: vipl.MaxDiscriminatorLen}
	for _, c := range []struct {
		set     string
		options int
		has     room
	}{
		{"", 0, usual},
		{"VIA_QUEUE=0", 1, usual},
		{"VIA_ARENA=1048576", 1, usual},
		{"VIA_RX_CHUNKS=64 VIA_TX_CHUNKS=64", 1, usual},
		{"VIA_SILENCE=100", 1, usual},
		{"VIA_MULTIBUFFER=0 VIA_PACKING=1 VIA_CHECKSUM=0 VIA_POLL_PAUSE=1", 4, usual},
		{"VIA_MODE=generic VIA_STEERING=off VIA_HUGEPAGES=require", 3, usual},
		{"VIA_PSK=" + key, 1, usual},
		{"VIA_CONGESTION=cubic", 1, usual},
		{"VIA_MAX_DISCRIMINATOR=16", 0, room{discriminator: 16}},
		{"VIA_ADDRESS_LEN=6", 0, room{longHost, vipl.MaxDiscriminatorLen}},
	} {
		t.Run(c.set, func(t *testing.T) {
			unset(t)
			for _, s := range strings.Fields(c.set) {
				name, value, _ := strings.Cut(s, "=")
				t.Setenv(name, value)
			}
			opts, has, err := options()
			nstest.ErrorIf(t, err != nil || len(opts) != c.options || has != c.has,
				"%d options, %+v, %v; want %d, %+v", len(opts), has, err, c.options, c.has)
		})
	}
}

// A key's file must exist and end.
func TestWrongKeyFile(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "none"), "/dev/zero"} {
		unset(t)
		t.Setenv("VIA_PSK", name)
		if _, _, err := options(); err == nil || !strings.HasPrefix(err.Error(), "$VIA_PSK") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// VIA_DNS is 0 or 1; any other value is an error, instead of questions to DNS.
func TestNameSources(t *testing.T) {
	for text, want := range map[string]vipl.NSConfig{
		"": {Names: "n", Hosts: "h"}, "1": {Names: "n", Hosts: "h"}, "0": {Names: "n", Hosts: "h", NoDNS: true},
	} {
		t.Setenv("VIA_NAMES", "n")
		t.Setenv("VIA_HOSTS", "h")
		t.Setenv("VIA_DNS", text)
		if got, err := nameSources(); err != nil || got != want {
			t.Errorf("VIA_DNS=%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"no", "off", "false", "00", " 0", "2"} {
		t.Setenv("VIA_DNS", text)
		if _, err := nameSources(); !errors.Is(err, vipl.ErrNameService) || !strings.Contains(err.Error(), "$VIA_DNS") {
			t.Errorf("VIA_DNS=%q: %v", text, err)
		}
	}
}
