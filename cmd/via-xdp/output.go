package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"viaxdp/bench"
)

// output is where the report goes.
type output struct {
	json string // file; "-": standard output
	svg  string // directory
}

func (o *output) flags(f *pflag.FlagSet) {
	f.StringVar(&o.json, "json", "", "write the result as JSON to this `file`; - for standard output, the table then goes to standard error")
	f.StringVar(&o.svg, "svg", "", "write plots to this `directory`")
}

// check finds a place that is not there before anything is measured.
func (o *output) check() error { return checkFile(o.json) }

// checkFile says whether a file can be written, without making it.
func checkFile(path string) error {
	if path == "" || path == "-" {
		return nil
	}
	dir := filepath.Dir(path)
	if st, err := os.Stat(dir); err != nil {
		return fmt.Errorf("--json %s: %w", path, err)
	} else if !st.IsDir() {
		return fmt.Errorf("--json %s: %s is no directory", path, dir)
	}
	needed := dir
	if st, err := os.Stat(path); err == nil {
		if needed = path; st.IsDir() {
			return fmt.Errorf("--json %s: it is a directory: name a file", path)
		}
	}
	if err := unix.Access(needed, unix.W_OK); err != nil {
		return fmt.Errorf("--json %s: %w", path, &os.PathError{Op: "write to", Path: needed, Err: err})
	}
	return nil
}

// write prints the table and what else was asked for.
func (o *output) write(env environment, r *bench.Result) error {
	table := env.stdout
	if o.json == "-" {
		table = env.stderr
	}
	if err := r.WriteTable(table); err != nil {
		return err
	}
	switch o.json {
	case "":
	case "-":
		if err := r.WriteJSON(env.stdout); err != nil {
			return err
		}
	default:
		if err := writeFile(o.json, r.WriteJSON); err != nil {
			return err
		}
	}
	if o.svg == "" {
		return nil
	}
	files, err := r.WritePlots(o.svg)
	for _, f := range files {
		fmt.Fprintln(env.stderr, "wrote", f)
	}
	return err
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
