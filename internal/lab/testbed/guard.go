package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
)

// A Guard raises the allowance of surplus hugepages of 2 MB for a short while: hugepages
// that the kernel makes when a process maps them and takes back when they are freed
// (Documentation/admin-guide/mm/hugetlbpage.rst). The raising is done by a process of
// its own that takes it back when told to, and also when its parent is gone, be it by
// SIGKILL.
//
//	parent --"raise 64"--> guard process   allowance += 64
//	parent --"restore"---> guard process   allowance -= 64
//	   (end of file) ----> guard process   allowance -= what is raised; exits
//
// One goroutine may use it at a time.
type Guard struct {
	child  *Side
	lines  *bufio.Scanner
	raised int // pages
}

// StartGuard starts the process. args make this program call [GuardMain].
func StartGuard(args []string) (*Guard, error) {
	// Its own session: it outlives its parent.
	c, err := newSide(args, nil, func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("hugepage guard: %w", err)
	}
	return &Guard{child: c, lines: bufio.NewScanner(c.Control)}, nil
}

// Raise adds pages to the allowance. With an error it is unchanged: programs
// then do with fewer or no hugepages.
func (g *Guard) Raise(pages int) error {
	if err := g.call(fmt.Sprintf("raise %d", pages)); err != nil {
		return err
	}
	g.raised += pages
	return nil
}

// Restore takes back all that Raise has added. Pages in use stay with their
// users until they free them.
func (g *Guard) Restore() error {
	if g.raised == 0 {
		return nil
	}
	err := g.call("restore")
	if err == nil {
		g.raised = 0
	}
	return err
}

// Close restores and ends the process. If the process was killed, the
// allowance is taken back here.
func (g *Guard) Close() error {
	err := g.Restore()
	g.child.Control.Close()
	g.child.endWithin(closeGrace)
	return err
}

func (g *Guard) call(line string) error {
	_, err := fmt.Fprintln(g.child.Control, line)
	if err == nil {
		if g.lines.Scan() {
			if answer := g.lines.Text(); answer != "ok" {
				return errors.New(answer)
			}
			return nil
		}
		err = errors.Join(io.ErrUnexpectedEOF, g.lines.Err())
	}
	if g.raised > 0 {
		// The process is gone and could not take it back.
		err = errors.Join(err, hugepages.LowerOvercommit(g.raised))
		g.raised = 0
	}
	return fmt.Errorf("hugepage guard: %w", err)
}

// GuardMain is the guard process: it obeys lines from its control connection
// until that ends, and then takes back what is still raised.
func GuardMain() error {
	control, err := Control()
	if err != nil {
		return err
	}
	defer control.Close()
	// It ends with its parent, not with what ends its parent.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	return guard(control, hugepages.Overcommit)
}

// guard obeys the lines; overcommit raises the allowance and returns how to
// take it back.
func guard(control io.ReadWriter, overcommit func(int) (func() error, error)) error {
	var undo []func() error
	restore := func() error {
		var errs []error
		undo = slices.DeleteFunc(undo, func(f func() error) bool {
			err := f()
			errs = append(errs, err)
			return err == nil
		})
		return errors.Join(errs...)
	}
	for lines := bufio.NewScanner(control); lines.Scan(); {
		verb, arg, _ := strings.Cut(lines.Text(), " ")
		var err error
		switch verb {
		case "raise":
			var n int
			if n, err = strconv.Atoi(arg); err == nil {
				var f func() error
				if f, err = overcommit(n); err == nil {
					undo = append(undo, f)
				}
			}
		case "restore":
			err = restore()
		default:
			err = fmt.Errorf("unknown word %q", verb)
		}
		answer := "ok"
		if err != nil {
			answer = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		if _, err := fmt.Fprintln(control, answer); err != nil {
			break
		}
	}
	return restore()
}
