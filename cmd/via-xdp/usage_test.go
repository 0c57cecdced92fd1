package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A command that is called in a wrong way says what is wrong and how it is called.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"dance":                  `via-xdp has no command "dance"; via-xdp --help lists them`,
		"sta":                    `via-xdp has no command "sta"; is it soak or stat`,
		"completion dance":       `via-xdp completion has no command "dance"; via-xdp completion --help lists them`,
		"help dance":             `via-xdp has no command "dance"; via-xdp --help lists them`,
		"help gen dance":         `via-xdp gen has no command "dance"; via-xdp gen --help lists them`,
		"testbed dance":          `via-xdp testbed has no command "dance"; via-xdp testbed --help lists them`,
		"ping":                   "accepts 1 arg(s), received 0; usage: via-xdp ping HOST [flags] (--help tells more)",
		"demo now":               `"now" is too much; usage: via-xdp demo [flags] (--help tells more)`,
		"demo --dance":           "unknown flag: --dance; usage: via-xdp demo [flags] (--help tells more)",
		"stat -i eth0":           "--interval eth0: want seconds (show rates every so many seconds); usage: via-xdp stat [INTERFACE] [flags] (--help tells more)",
		"soak --for 5":           "--for 5: want a time such as 500ms or 20s (how long); usage: via-xdp soak [flags] (--help tells more)",
		"pingpong -s big":        "--size big: want a number (message size in bytes); usage: via-xdp pingpong [flags] [SERVER] (--help tells more)",
		"info --json=maybe":      "--json maybe: want true or false (print JSON); usage: via-xdp info [INTERFACE] [flags] (--help tells more)",
		"soak --seed x":          "--seed x: want a number (of the events and faults (default: a random one, which the report tells)); usage: via-xdp soak [flags] (--help tells more)",
		"stream -D long":         "--duration long: want a number (seconds for each size); usage: via-xdp stream [flags] [SERVER] (--help tells more)",
		"ping -p -1 host":        "--port -1: want a number (UDP port of the agent); usage: via-xdp ping HOST [flags] (--help tells more)",
		`demo --names "`:         `--names ": want names with commas between them (transports to measure); usage: via-xdp demo [flags] (--help tells more)`,
		"mpiapp dance":           `invalid argument "dance" for "via-xdp mpiapp"; usage: via-xdp mpiapp [flags] cg|stencil (--help tells more)`,
		"pingpong --silence -5s": "--silence -5s: want 10ms or more, or 0 for the default",
		"stream --silence 9ms h": "--silence 9ms: want 10ms or more, or 0 for the default",
		"proxy --to via:1":       "--listen and --to are both needed; usage: via-xdp proxy --listen tcp:HOST:PORT --to via:HOST:PORT [flags] (--help tells more)",
	} {
		status, out, errs := call(&recorder{}, strings.Fields(args)...)
		if status != exitFailed || out != "" || errs != "via-xdp: "+want+"\n" {
			t.Errorf("%s: status %d, %s%s", args, status, out, errs)
		}
	}
}

// A report that could not be written is refused before anything is measured.
func TestNoPlaceForReport(t *testing.T) {
	for _, args := range []string{"demo", "pingpong host", "stream host", "bench pingpong", "soak"} {
		r := &recorder{}
		status, _, errs := call(r, append(strings.Fields(args), "--json", "/no/such/dir/report.json")...)
		if status != exitFailed || len(r.calls) > 0 || !strings.Contains(errs, "--json /no/such/dir/report.json: ") {
			t.Errorf("%s: status %d, %v, %s", args, status, r.calls, errs)
		}
	}
}

// What has no NIC to ask has --json, too.
func TestListsAsJSON(t *testing.T) {
	for _, args := range []string{"version --json", "bench list --json", "doctor --list --json"} {
		status, out, errs := call(&recorder{}, strings.Fields(args)...)
		if status != exitFine || !json.Valid([]byte(out)) || errs != "" {
			t.Errorf("%s: status %d, %s%s", args, status, out, errs)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	_, want, _ := call(&recorder{}, "version")
	if status, out, _ := call(&recorder{}, "--version"); status != exitFine || out != want {
		t.Errorf("status %d, %q, want %q", status, out, want)
	}
}

// An agent's settings are checked, and the file is named.
func TestAgentCheck(t *testing.T) {
	for args, want := range map[string]string{
		"--config ../../contrib/agent.toml": "../../contrib/agent.toml is good\n",
		"":                                  "there is no " + defaultAgentConfig + ": the defaults hold\n",
	} {
		var out bytes.Buffer
		status := run(t.Context(), environment{args: append([]string{"agent", "--check"}, strings.Fields(args)...), stdout: &out, stderr: &out})
		if status != exitFine || out.String() != want {
			t.Errorf("%s: status %d, %s", args, status, out.String())
		}
	}
}
