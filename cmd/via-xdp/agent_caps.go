package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilityError says what the agent lacks; it then cannot run here.
type capabilityError struct{ missing []string }

func (e *capabilityError) Error() string {
	return fmt.Sprintf("the agent lacks %s: start it as root, by the systemd unit, or in a container with these capabilities",
		strings.Join(e.missing, ", "))
}

// agentPrivileges looks for the capabilities that every open will need.
func agentPrivileges() error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil // the kernel says later what is missing
	}
	return missingCapabilities(string(b))
}

func missingCapabilities(status string) error {
	_, rest, ok := strings.Cut("\n"+status, "\nCapEff:") // a program may be called so
	if !ok {
		return nil
	}
	line, _, _ := strings.Cut(rest, "\n")
	have, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return nil
	}
	var missing []string
	for _, c := range []struct {
		name string
		bit  int
	}{{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, {"CAP_NET_RAW", unix.CAP_NET_RAW}, {"CAP_BPF", unix.CAP_BPF}} {
		// CAP_SYS_ADMIN includes CAP_BPF.
		if have>>c.bit&1 == 0 && !(c.bit == unix.CAP_BPF && have>>unix.CAP_SYS_ADMIN&1 == 1) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return &capabilityError{missing}
	}
	return nil
}
