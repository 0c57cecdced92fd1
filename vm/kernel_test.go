package main

import (
	"strings"
	"testing"
)

func TestFindRelease(t *testing.T) {
	packages := []string{
		"linux-image-6.1.0-47-amd64", "linux-image-6.1.0-50-amd64", "linux-image-6.1.0-50-cloud-amd64", "linux-image-6.1.0-9-amd64",
		"linux-image-6.12.95+deb12-amd64", "linux-image-6.12.107+deb13-amd64", "linux-image-6.12.107+deb13-rt-amd64",
		"linux-image-6.18.9+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64", "linux-image-6.18.5+deb13-cloud-amd64",
		"linux-image-7.2.12+deb13-cloud-amd64", "linux-image-7.2.9+deb13-cloud-amd64",
		"linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64", // no kernel yet
		"linux-image-amd64",
	}
	for _, tc := range []struct {
		series string
		cloud  bool
		want   string
	}{
		{"6.1", false, "6.1.0-50-amd64"}, // and not 6.12, nor -9
		{"6.1", true, "6.1.0-50-cloud-amd64"},
		{"6.12", false, "6.12.107+deb13-amd64"},
		{"6.18", true, "6.18.15+deb13-cloud-amd64"},
		{newest, true, "7.2.12+deb13-cloud-amd64"},
		{newest, false, "6.12.107+deb13-amd64"},
		{"5.10", true, ""},
		{"6.18", false, ""},
	} {
		got, err := findRelease(packages, tc.series, tc.cloud)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s, cloud %v: %q, %v; want %q", tc.series, tc.cloud, got, err, tc.want)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.16.3+deb13-cloud-amd64": true, "6.15.99": false, "6.18.0": true, "7.0.1": true, "5.19.0": false, "what": false,
	} {
		if got := atLeast(release, [2]int{6, 16}); got != want {
			t.Errorf("%s: %v", release, got)
		}
	}
}

// The emulator is told which NICs, and never to look for virtualization.
func TestGuestArgs(t *testing.T) {
	for _, f := range forms {
		g := guest{form: f, dir: "/run", memory: 512}
		args := strings.Join(g.args(), " ")
		for _, want := range []string{"-accel tcg", "hubid=1", "file:/run/results.json", f.device + ",netdev=n0", f.device + ",netdev=n1"} {
			if !strings.Contains(args, want) {
				t.Errorf("%s: no %q in %s", f.name, want, args)
			}
		}
		if got := strings.Contains(args, "bus=rp1"); got != f.rootPort {
			t.Errorf("%s: root port %v, want %v", f.name, got, f.rootPort)
		}
	}
}
