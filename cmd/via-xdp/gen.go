package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"viaxdp/internal/ops/doctor"
)

//go:generate go run . gen doc ../../docs/cli.md

func newGen(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gen",
		Short: "Write man pages, or docs/cli.md, from the commands",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "man DIR",
		Short: "Write a man page of each command",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writeMan(cmd.Root(), args[0])
		},
	}, &cobra.Command{
		Use:   "doc FILE",
		Short: "Write all commands and flags as Markdown",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeFile(args[0], func(w io.Writer) error { return writeDoc(w, cmd.Root()) })
		},
	})
	return cmd
}

// writeMan writes a page of each command, the same at all times.
func writeMan(root *cobra.Command, dir string) error {
	never := time.Unix(0, 0).UTC()
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: "via-xdp", Manual: "via-xdp", Date: &never}, dir)
}

// listed are the commands that have a chapter.
func listed(cmd *cobra.Command) bool {
	return !cmd.Hidden && cmd.Name() != "help" && cmd.Name() != "completion"
}

// writeDoc writes docs/cli.md.
func writeDoc(w io.Writer, root *cobra.Command) error {
	var b bytes.Buffer
	b.WriteString("# The command line\n\n")
	b.WriteString("Generated from the commands by `go generate ./cmd/via-xdp`; a test compares the two.\n" +
		"Nouns read, verbs change; commands that read have `--json`. Exit status: 0 success, 1 failure,\n" +
		"2 cannot run here, 130 interrupted. `via-xdp gen man DIR` writes man pages, and\n" +
		"`via-xdp completion SHELL` the completions for bash, zsh, fish and PowerShell. Output has\n" +
		"colors on terminals unless `NO_COLOR` is set.\n\n| environment | |\n|---|---|\n" +
		"| `VIA_STATE_DIR` | directory in which `doctor --fix` and `tune` record previous values; `/run/via-xdp` for root, else `$XDG_RUNTIME_DIR/via-xdp` |\n" +
		"| `VIA_RUNTIME_DIR` | directory in which a program with open NICs has its socket, for `res`, `stat`, `top` and `capture`; `none`: no socket; by default `proc` in the directories above; without this variable and `XDG_RUNTIME_DIR`, a user's program has no socket and `res` does not show it |\n" +
		"| `VIA_AGENT` | socket of the agent that opens NICs for the commands; `none`: no agent, `auto`: programs of root start it, see docs/agent.md. Commands that make namespaces, such as `demo`, do not use a socket |\n" +
		"| `VIADEV_DEVICE` | interface of a rank (`mpiapp`, `mpibench`); `mpirun` sets it |\n" +
		"| `RUNTIME_DIRECTORY` | directory in which `agent` has its lock and the socket of its descriptor store; by default that of its socket; systemd sets it |\n")
	var chapter func(cmd *cobra.Command)
	chapter = func(cmd *cobra.Command) {
		if !listed(cmd) {
			return
		}
		if cmd != root {
			fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n```\n%s\n```\n", strings.TrimPrefix(cmd.CommandPath(), "via-xdp "), cmd.Short, useLine(cmd))
			if cmd.Long != "" {
				fmt.Fprintf(&b, "\n%s\n", fenced(cmd.Long))
			}
			writeFlags(&b, cmd)
		}
		if cmd.Name() == "doctor" {
			b.WriteString("\n| check | |\n|---|---|\n")
			for _, c := range doctor.Checks {
				fmt.Fprintf(&b, "| `%s` | %s |\n", c.ID, c.About)
			}
		}
		for _, sub := range cmd.Commands() {
			chapter(sub)
		}
	}
	chapter(root)
	_, err := w.Write(b.Bytes())
	return err
}

// useLine is the command's, which does not depend on whether it is being run.
func useLine(cmd *cobra.Command) string {
	s := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	own := false
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { own = own || f.Name != "help" })
	if own && !strings.Contains(s, "[flags]") {
		s += " [flags]"
	}
	return s
}

// fenced keeps a text with lists as it is laid out.
func fenced(s string) string {
	if strings.Contains(s, "\n  ") {
		return "```\n" + s + "\n```"
	}
	return strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(s)
}

func writeFlags(b *bytes.Buffer, cmd *cobra.Command) {
	head := false
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if !head {
			b.WriteString("\n| flag | |\n|---|---|\n")
			head = true
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && d != "0s" && !strings.HasPrefix(d, "-1") {
			usage += " (default " + d + ")"
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, strings.ReplaceAll(strings.ReplaceAll(usage, "\n", " "), "|", `\|`))
	})
}

// completeInterfaces completes the names of interfaces.
func completeInterfaces(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	entries, _ := filepath.Glob("/sys/class/net/*")
	var names []string
	for _, e := range entries {
		names = append(names, filepath.Base(e))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
