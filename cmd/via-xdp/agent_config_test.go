package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A user named twice, by name and by number, is an error: the order of a map must not decide which quota holds.
func TestUserNamedTwice(t *testing.T) {
	const twice = "[user.root]\nqueues = 1\n[user.0]\nqueues = 2\n"
	if s, err := parseAgentSettings([]byte(twice)); err == nil || !strings.Contains(err.Error(), "named twice") {
		t.Errorf("%+v, %v", s.daemon.Users, err)
	}
}

// The command line may name the socket relative to the working directory; the descriptor store runs in another
// directory.
func TestRelativeSocket(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s, err := parseAgentSettings(nil)
	if err == nil {
		err = s.override("agent.sock", "", nil)
	}
	if want := filepath.Join(dir, "agent.sock"); err != nil || s.daemon.Socket != want {
		t.Errorf("%q, %v, want %q", s.daemon.Socket, err, want)
	}
}

// FuzzAgentSettings: any settings file gives settings within their bounds, or an error, the same each time.
func FuzzAgentSettings(f *testing.F) {
	f.Add([]byte("socket = \"/run/a\"\nmode = \"0660\"\nmax_connections = 5\n[quota]\nqueues = 3\npinned = \"64MiB\"\n" +
		"[user.0]\nvis = 9\n[interface.eth0]\nport = 4800\nmax_vis = 64\nmode = \"generic\"\nusers = [\"0\", \"12\"]\n"))
	f.Add([]byte("[user.root]\n[user.0]\n"))
	f.Add([]byte("[interface.x]\nmax_vis = 1\n"))
	f.Add([]byte("quota = 3\n"))
	f.Add([]byte("[quota]\npinned = \"9223372036854775807KiB\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseAgentSettings(b)
		again, err2 := parseAgentSettings(b)
		if (err == nil) != (err2 == nil) || err == nil && !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v, %v and %+v, %v", s, err, again, err2)
		}
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		d := s.daemon
		quota := d.Quota
		if !strings.HasPrefix(d.Socket, "/") || d.Mode > 0o777 || d.MaxConnections < 0 ||
			min(quota.Connections, quota.Queues, quota.VIs, quota.PinnedBytes) < 0 {
			t.Errorf("%+v", d)
		}
		for uid, q := range d.Users {
			if min(q.Connections, q.Queues, q.VIs, q.PinnedBytes) < 0 {
				t.Errorf("user %d: %+v", uid, q)
			}
		}
		for name, i := range d.Interfaces {
			if i.MaxVIs != 0 && (i.MaxVIs < 2 || i.MaxVIs > 1<<16) {
				t.Errorf("interface %s: %+v", name, i)
			}
		}
	})
}

// FuzzCapabilities: the agent reports the capabilities that the kernel's line lacks, for any program name and any
// other content of the file. A file without that line does not stop the agent.
func FuzzCapabilities(f *testing.F) {
	f.Add("via-xdp", uint64(0x1ffffffffff), "CapBnd:\t0\n")
	f.Add("CapEff:0", uint64(0x3000), "")
	f.Add("x", uint64(1)<<39, "CapEff:\t0\n")
	f.Add("x", uint64(1)<<21, "NoNewPrivs:\t0")
	f.Add("x", uint64(0x203000), "")
	f.Fuzz(func(t *testing.T, name string, have uint64, rest string) {
		name = strings.ReplaceAll(name, "\n", "\\n") // proc_pid_status(5)
		var want []string
		bit := func(n int) bool { return have&(1<<n) != 0 }
		if !bit(12) {
			want = append(want, "CAP_NET_ADMIN")
		}
		if !bit(13) {
			want = append(want, "CAP_NET_RAW")
		}
		if !bit(39) && !bit(21) {
			want = append(want, "CAP_BPF")
		}
		err := missingCapabilities(fmt.Sprintf("Name:\t%s\nUmask:\t0022\nCapPrm:\t0\nCapEff:\t%016x\n%s", name, have, rest))
		var missing *capabilityError
		if err != nil && statusOf(t.Context(), err) != exitCannotRun {
			t.Errorf("%v: exit status %d", err, statusOf(t.Context(), err))
		}
		if errors.As(err, &missing) != (err != nil) || err == nil && len(want) > 0 || err != nil && !slices.Equal(missing.missing, want) {
			t.Fatalf("%q with %x: %v, want %q", name, have, err, want)
		}
		if err := missingCapabilities(rest); errors.As(err, &missing) != (err != nil) || err != nil &&
			(len(missing.missing) == 0 || !strings.Contains(rest, "CapEff:") || !strings.Contains(err.Error(), "start it as root")) {
			t.Fatalf("%q: %v", rest, err)
		}
	})
}
