package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// writeDoc writes what the kernels have shown, as a page of Markdown.
func writeDoc(path string, o options, form nicForm, runs []*kernelRun) error {
	return os.WriteFile(path, matrix(o, form, runs), 0o644)
}

func matrix(o options, form nicForm, runs []*kernelRun) []byte {
	flags, suite := "", ", the data part of the\nconformance suite, and ping-pongs whose every byte is checked"
	if o.short {
		flags, suite = " --short", "\nand a ping-pong whose every byte is checked"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Kernels

Written by `+"`go run ./vm --nic %s --kernel %s%s --doc docs/kernel-support.md`"+`, which
boots each of these kernels of Debian in a virtual machine with two %[1]s NICs, asks what
they can do, and runs the tests of package xdpnic for real NICs%[4]s: in zero-copy
mode where the driver has it, else in native mode. All of that has passed with each of them.

`, form.name, o.series, flags, suite)
	cells := []string{"| |", "|---|"}
	for _, r := range runs {
		cells[0] += " " + r.release + " |"
		cells[1] += "---|"
	}
	fmt.Fprintf(&b, "%s\n%s\n", cells[0], cells[1])
	line := func(name string, cell func(*kernelRun) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range runs {
			fmt.Fprintf(&b, " %s |", cell(r))
		}
		b.WriteByte('\n')
	}
	for _, f := range runs[0].outcome.facts {
		line(f.name, func(r *kernelRun) string {
			switch g := findFact(r.outcome.facts, f.name); {
			case g == nil:
				return "not known"
			case g.can:
				return "yes"
			}
			return "no"
		})
	}
	line("tested in mode", func(r *kernelRun) string { return r.mode })
	line("tests passed", func(r *kernelRun) string { return fmt.Sprint(r.outcome.tests) })
	b.WriteString("\nWhat a kernel must be able to do for all of that to pass:\n\n| from | | |\n|---|---|---|\n")
	for _, n := range form.needs() {
		fmt.Fprintf(&b, "| %d.%d | %s | %s |\n", n.version[0], n.version[1], n.fact, n.why)
	}
	var refused []string
	for _, r := range runs {
		for _, f := range r.outcome.facts {
			if !f.can {
				refused = append(refused, fmt.Sprintf("- %s, %s: %s", r.release, f.name, f.reason))
			}
		}
	}
	if len(refused) > 0 {
		fmt.Fprintf(&b, "\nThe reasons, as the library gives them:\n\n%s\n", strings.Join(refused, "\n"))
	}
	return b.Bytes()
}
