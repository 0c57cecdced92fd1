package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/torture"
	"viaxdp/vipl"
)

// soaked runs the command with a soak that reports r and err.
func soaked(ctx context.Context, r torture.SoakReport, err error, args ...string) (cfg torture.SoakConfig, status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	env := environment{stdout: &out, stderr: &errs}
	cmd := newSoak(env, func(_ context.Context, c torture.SoakConfig) (torture.SoakReport, error) {
		cfg = c
		c.Progress(r)
		return r, err
	})
	if err := execute(ctx, cmd, args...); err != nil {
		fmt.Fprintln(&errs, oneLine(err))
		status = statusOf(ctx, err)
	}
	return cfg, status, out.String(), errs.String()
}

var goodSoak = torture.SoakReport{
	Seed: 7, Silence: 1600 * time.Millisecond, IP: 6, MTU: 9000, Elapsed: time.Hour, Acts: 3, Messages: 4321, Audits: 6, Accounted: 765, Connections: 99, Breaks: 12,
	Events: map[string]int{"kill": 5, "calm": 2}, Emulator: testbed.EmulatorCounters{Lost: 17},
}

// The report has a line for each thing that happened, and for what was asked.
func TestSoakReport(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		change func(r *torture.SoakReport)
		want   []string
	}{
		"plain": {nil, func(*torture.SoakReport) {}, []string{
			"1h0m0s, 3 acts, seed 7, silence 1.6s, IPv6, MTU 9000\n", "4321 checked", "99, 12 broke\n", "17 lost", "2 calm, 5 kill",
			"6 times all chunks", "none of 765 frames sent", "every promise was kept",
		}},
		"excused": {nil, func(r *torture.SoakReport) { r.Excused = 2 }, []string{"99, 12 broke; 2 because a process got no CPU"}},
		"kills and bytes": {nil, func(r *torture.SoakReport) {
			r.Kills, r.MedianTold, r.SlowestTold, r.Bytes = 1000, 402*time.Millisecond, 1300*time.Millisecond, 100_500_000_000
			r.ToldLate = 3
		}, []string{"1000, noticed by all within 402ms in the median, 1.3s at most; 3 later than promised", "100.500 GB checked"}},
		"hostile": {[]string{"--hostile"}, func(r *torture.SoakReport) {
			r.Flood = &torture.Flood{
				Forged: 1000, Rate: 50, Calm: torture.Passed{Rate: 600}, Spared: torture.Passed{Rate: 200},
				Flooded: torture.Passed{Rate: 150}, BesideRate: 70, Kept: 0.75,
			}
		}, []string{
			"1000 forged frames, 50/s", "150 messages/s beside 70 forged frames/s, 200 beside attackers with no target (75 % kept), 600 without any",
		}},
		"plain frames": {[]string{"--hostile", "--plain"}, func(*torture.SoakReport) {}, nil},
		"direct": {[]string{"--gigabytes", "1", "--direct", "--loss", "0.1"}, func(r *torture.SoakReport) {
			r.Bytes, r.Direct, r.InPackets, r.Packets, r.Discarded = 1_000_000_000, true, 700, 40, 21
		}, []string{"1.000 GB checked", "700 sent in GSO packets; 40 packets arrived whole", "21 frames and packets lost"}},
		"agent": {[]string{"--agent"}, func(r *torture.SoakReport) { r.Agent = true }, []string{"MTU 9000, opened by agents\n"}},
	} {
		r := goodSoak
		c.change(&r)
		cfg, status, out, errs := soaked(context.Background(), r, nil, c.args...)
		nstest.ErrorIf(t, status != exitFine || errs != "", "%s: status %d, %q", name, status, errs)
		for _, want := range c.want {
			nstest.ErrorIf(t, !strings.Contains(out, want), "%s: no %q in\n%s", name, want, out)
		}
		asked := func(flag string) bool { return slices.Contains(c.args, flag) }
		nstest.ErrorIf(t, cfg.Hostile != asked("--hostile") || cfg.Plain != asked("--plain") || cfg.Agents != asked("--agent"),
			"%s: %+v", name, cfg)
	}
}

// The report of an attack has its promise and its result. An attack takes no flags of other
// soaks.
func TestSoakAttack(t *testing.T) {
	r := torture.SoakReport{
		Seed: 7, Elapsed: 5 * time.Second,
		Attack: &torture.AttackReport{Name: "peer", Promise: "nothing leaks", Result: "12 connections: 0 bytes"},
	}
	cfg, status, out, _ := soaked(context.Background(), r, nil, "--attack", "peer", "--for", "5s")
	want := "5s, attack peer, seed 7\n  promise       nothing leaks\n  result        12 connections: 0 bytes\n  every promise was kept\n"
	nstest.ErrorIf(t, cfg.Attack != "peer" || cfg.For != 5*time.Second || status != exitFine || out != want,
		"%+v, status %d:\n%s", cfg, status, out)
	r.Violations = []string{"8 bytes leaked"}
	if _, status, out, _ = soaked(context.Background(), r, torture.ErrBroken, "--attack", "peer"); status != exitFailed || !strings.Contains(out, "BROKEN: 8 bytes leaked") {
		t.Errorf("status %d:\n%s", status, out)
	}
	for _, args := range [][]string{
		{"--attack", "weather"}, {"--attack", "peer", "--kills", "3"}, {"--attack", "users", "--agent"}, {"--attack", "requests", "--hostile"},
	} {
		if _, status, out, errs := soaked(context.Background(), r, nil, args...); status == exitFine || out != "" || !strings.Contains(errs, "--attack") {
			t.Errorf("%q: status %d, %q", args, status, errs)
		}
	}
}

// A broken promise is reported in words and by the status; the report comes first. If a soak cannot begin, the only
// output is the reason. One that is interrupted reports what it has.
func TestSoakEnds(t *testing.T) {
	bad := goodSoak
	bad.Violations = []string{"message 8 came, 7 was due"}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx       context.Context
		report    torture.SoakReport
		err       error
		status    int
		out, errs string // a part; "": nothing
	}{
		"broken": {t.Context(), bad, fmt.Errorf("%w (seed 7)", torture.ErrBroken), exitFailed,
			"BROKEN: message 8 came, 7 was due", "a promise was broken (seed 7)"},
		"missing": {t.Context(), torture.SoakReport{}, &testbed.MissingError{What: "CAP_BPF", Remedy: "use sudo"},
			exitCannotRun, "", "CAP_BPF"},
		"cannot begin": {t.Context(), torture.SoakReport{}, errors.New("no memory"), exitFailed, "", "no memory"},
		"interrupted":  {interrupted, goodSoak, nil, exitInterrupted, "4321", "canceled"},
	} {
		_, status, out, errs := soaked(c.ctx, c.report, c.err)
		if status != c.status || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) ||
			(c.out == "") != (out == "") || strings.Contains(out, "was kept") != (name == "interrupted") {
			t.Errorf("%s: status %d, %q, %q", name, status, errs, out)
		}
	}
}

func TestSoakFlags(t *testing.T) {
	cfg, status, out, errs := soaked(context.Background(), goodSoak, nil, "--for", "2h", "--act", "5s", "--flows", "9", "--seed", "11", "--silence", "700ms", "--ip", "6", "--mtu", "4000", "--json", "-")
	if status != exitFine || cfg.For != 2*time.Hour || cfg.Act != 5*time.Second || cfg.Flows != 9 || cfg.Seed != 11 || cfg.Silence != 700*time.Millisecond || cfg.IP != 6 || cfg.MTU != 4000 ||
		!slices.Equal(cfg.Args, []string{soakWorkerCommand}) {
		t.Errorf("status %d, %+v", status, cfg)
	}
	var r torture.SoakReport
	nstest.Must(t, json.Unmarshal([]byte(out), &r))
	nstest.Same(t, "JSON", r, goodSoak)
	nstest.ErrorIf(t, !strings.Contains(errs, "3 acts"), "no text on standard error: %q", errs)
	first, _, _, _ := soaked(context.Background(), goodSoak, nil)
	second, _, _, _ := soaked(context.Background(), goodSoak, nil)
	if first.Silence != vipl.DefaultSilence || first.IP != 0 || first.MTU != 0 { // the seed has it
		t.Errorf("%+v", first)
	}
	nstest.ErrorIf(t, first.Seed == second.Seed, "two soaks with the same random seed")
	if cfg, status, _, _ := soaked(context.Background(), goodSoak, nil, "--kills", "1000"); status != exitFine || cfg.Kills != 1000 || cfg.For != 0 {
		t.Errorf("status %d, %+v", status, cfg)
	}
	if cfg, _, _, _ := soaked(context.Background(), goodSoak, nil, "--gigabytes", "0.5", "--for", "3s"); cfg.Bytes != 5e8 || cfg.For != 3*time.Second {
		t.Errorf("%+v", cfg)
	}
	for _, args := range [][]string{
		{"--kills", "-1"}, {"--gigabytes", "-1"}, {"--kills", "1", "--gigabytes", "1"},
		{"--hostile", "--kills", "1"}, {"--hostile", "--gigabytes", "1"}, {"--for", "0s"}, {"--flows", "0"}, {"--act", "-1s"}, {"--silence", "9ms"}, {"--ip", "5"},
		{"--mtu", "1499"}, {"--mtu", "70000"}, {"--mtu", "0"}, {"--plain"}, {"extra"}, {"--direct"}, {"--gigabytes", "1", "--loss", "0.1"}, {"--gigabytes", "1", "--direct", "--loss", "0.3"}, {"--gigabytes", "1", "--direct", "--loss", "-1"},
	} {
		if cfg, status, _, _ := soaked(context.Background(), goodSoak, nil, args...); status != exitFailed || cfg.Args != nil {
			t.Errorf("%v: status %d", args, status)
		}
	}
}
