package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"viaxdp/bench"
	"viaxdp/bench/report"
)

// output is where the report goes.
type output struct {
	json jsonFile
	svg  string // directory
}

func (o *output) flags(f *pflag.FlagSet) {
	o.json.flag(f, "write the result as JSON to this `file`; - for standard output, the table then goes to standard error")
	f.StringVar(&o.svg, "svg", "", "write plots to this `directory`")
}

// write prints the table and what else was asked for.
func (o *output) write(env environment, r *bench.Result) error {
	table := func(w io.Writer) error { return report.WriteResult(w, r) }
	if err := o.json.write(env, table, r.WriteJSON); err != nil || o.svg == "" {
		return err
	}
	files, err := report.WriteResultPlots(r, o.svg)
	for _, f := range files {
		fmt.Fprintln(env.stderr, "wrote", f)
	}
	return err
}

// check finds a place that cannot be written before anything is measured.
func (o *output) check() error {
	return errors.Join(o.json.check(), checkDirectory("--svg", o.svg))
}

// checkDirectory refuses a flag's directory that is none, cannot be made or cannot be
// written to. Empty is none.
func checkDirectory(flag, dir string) error {
	if dir == "" {
		return nil
	}
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) { // what there is of it
		st, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			continue
		case err == nil && !st.IsDir():
			err = fmt.Errorf("%s is no directory", at)
		case err == nil:
			if err = unix.Access(at, unix.W_OK); err == nil {
				return nil
			}
			err = &os.PathError{Op: "write to", Path: at, Err: err}
		}
		return fmt.Errorf("%s %s: %w", flag, dir, err)
	}
}

// jsonFile is where a result goes as JSON, beside the text output; "-" is standard
// output, empty is nowhere.
type jsonFile string

func (j *jsonFile) flag(f *pflag.FlagSet, usage string) {
	f.StringVar((*string)(j), "json", "", usage)
}

// check finds a place that cannot be written before anything is measured, without
// making the file.
func (j jsonFile) check() error {
	if j == "" || j == "-" {
		return nil
	}
	dir := filepath.Dir(string(j))
	if st, err := os.Stat(dir); err != nil {
		return fmt.Errorf("--json %s: %w", j, err)
	} else if !st.IsDir() {
		return fmt.Errorf("--json %s: %s is no directory", j, dir)
	}
	needed := dir
	if st, err := os.Stat(string(j)); err == nil {
		if needed = string(j); st.IsDir() {
			return fmt.Errorf("--json %s: it is a directory: name a file", j)
		}
	}
	if err := unix.Access(needed, unix.W_OK); err != nil {
		return fmt.Errorf("--json %s: %w", j, &os.PathError{Op: "write to", Path: needed, Err: err})
	}
	return nil
}

// text returns the writer for the text output.
func (j jsonFile) text(env environment) io.Writer {
	if j == "-" {
		return env.stderr
	}
	return env.stdout
}

// write writes both, the file first: a reader of the text that has enough may end this process (SIGPIPE).
func (j jsonFile) write(env environment, text, asJSON func(io.Writer) error) error {
	return errors.Join(j.keep(env, asJSON), text(j.text(env)))
}

// keep writes the JSON alone.
func (j jsonFile) keep(env environment, asJSON func(io.Writer) error) error {
	switch j {
	case "":
		return nil
	case "-":
		return asJSON(env.stdout)
	}
	return writeFile(string(j), asJSON)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// create opens a file to write it. [os.Create] would open it for reading, too: a pipe without another reader would then
// fill up, where a write is to fail.
func create(path string, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := create(path, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// replaceFile writes a file that is there. If that fails, or the program is killed meanwhile, the file is as it was.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Chmod(info.Mode().Perm()), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// printed is standard output. It remembers the first error, since callers that print line
// by line do not check.
type printed struct {
	w   io.Writer
	err error
}

func (p *printed) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if err != nil && p.err == nil {
		p.err = err
	}
	return n, err
}

// below is the writer behind standard output.
func below(w io.Writer) io.Writer {
	if p, ok := w.(*printed); ok {
		return p.w
	}
	return w
}

func isTerminal(w io.Writer) bool {
	f, ok := below(w).(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// progress keeps one line on a terminal up to date.
type progress struct {
	w     *os.File // nil: no terminal
	shown bool
}

func newProgress(w io.Writer) *progress {
	if !isTerminal(w) {
		return &progress{}
	}
	return &progress{w: below(w).(*os.File)}
}

func (p *progress) step(s bench.Step) {
	p.line("%s, %d bytes (turn %d of %d)", s.Name, s.Bytes, s.Turn, s.Turns)
}

func (p *progress) line(format string, args ...any) {
	if p.w == nil {
		return
	}
	p.shown = true
	text := []rune(fmt.Sprintf(format, args...))
	if _, columns := screen(p.w); len(text) >= columns { // only the last line of a longer one could be cleared
		text = text[:columns-1]
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", string(text))
}

func (p *progress) done() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
