package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
		case "int", "uint16", "uint64", "float64":
			if !strings.Contains(f.Usage, "`") { // what it is called
				kind = "a number"
			}
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
			switch {
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

// refuseUnknown makes cobra's own commands fail for a name that there is not, as ours do:
// they show help, and that all is well.
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
