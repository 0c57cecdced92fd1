package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaxdp/internal/lab/testbed"
	"viaxdp/xdpnic"
)

// within refuses a flag's number that is less than least or more than most; math.MaxInt
// is no bound.
func within(flag string, n, least, most int) error {
	switch {
	case n >= least && n <= most:
		return nil
	case most == math.MaxInt:
		return fmt.Errorf("%s %d: want %d or more", flag, n, least)
	}
	return fmt.Errorf("%s %d: want %d to %d", flag, n, least, most)
}

// lasting refuses a time that is none.
func lasting(flag string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s %v: want a time above 0, such as 500ms", flag, d)
	}
	return nil
}

func checkMTU(mtu int) error { return within("--mtu", mtu, testbed.MinMTU, testbed.MaxMTU) }

func checkMode(mode string) error {
	if _, err := xdpnic.ParseMode(mode); err != nil {
		return fmt.Errorf("--mode %s: want auto, zero-copy, native or generic", mode)
	}
	return nil
}

// usageError makes an error about arguments or flags say how the command is called.
func usageError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		f := bad.GetFlag()
		kind, about := pflag.UnquoteUsage(f)
		switch f.Value.Type() {
		case "duration":
			kind = "a time such as 500ms or 20s"
		case "bool":
			kind = "true or false"
		case "int", "float64":
			if !strings.Contains(f.Usage, "`") { // what it is called
				kind = "a number"
			}
		case "uint64":
			kind = "a number from 0"
		case "uint16":
			kind = "a number from 0 to 65535"
		case "intSlice":
			kind = "numbers with commas between them"
		case "stringSlice":
			kind = "names with commas between them"
		}
		err = fmt.Errorf("--%s %s: want %s (%s)", f.Name, bad.GetValue(), kind, about)
	}
	return fmt.Errorf("%w; usage: %s (--help tells more)", err, useLine(cmd))
}

// explainArguments makes every command's errors about its arguments usage errors.
func explainArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			f := cmd.Flags().Lookup("json")
			switch {
			case f != nil && f.Changed && f.Value.Type() == "bool" && slices.Contains(args, "-"):
				return usageError(cmd, errors.New("--json of this command is for standard output and takes no -"))
			case err == nil && slices.Contains(args, "") && cmd.Name() != "mpirun": // whose program may take one
				return usageError(cmd, errors.New("an argument is empty: a variable that is not set, perhaps"))
			case err == nil:
				return nil
			case cmd.HasSubCommands():
				return unknownCommand(cmd, args[0])
			case strings.HasPrefix(err.Error(), "unknown command"): // cobra.NoArgs
				err = fmt.Errorf("%q is too much", args[0])
			}
			return usageError(cmd, err)
		}
	}
	for _, sub := range cmd.Commands() {
		explainArguments(sub)
	}
}

// refuseUnknown makes cobra's own commands fail for an unknown name, as ours do. By
// default they show help and exit with 0.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
			explainArguments(c)
		case "help":
			c.RunE = func(_ *cobra.Command, args []string) error {
				topic, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 && topic.HasSubCommands() {
					return unknownCommand(topic, append(rest, args...)[0])
				}
				return topic.Help()
			}
		}
	}
}

// unknownCommand says which commands there are, or which one may be meant.
func unknownCommand(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		return fmt.Errorf("%s has no command %q; is it %s", cmd.CommandPath(), name, strings.Join(like, " or "))
	}
	return fmt.Errorf("%s has no command %q; %[1]s --help lists them", cmd.CommandPath(), name)
}
