package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
)

// A Guard raises the allowance of surplus hugepages of 2 MB for a short while: hugepages that
// the kernel makes when a process maps them and takes back when they are freed
// (Documentation/admin-guide/mm/hugetlbpage.rst). A separate process raises it, and takes it
// back when its control connection ends, and so even when its parent gets SIGKILL.
//
//	parent --"64"--------> guard process   allowance += 64; "ok"
//	   (end of file) ----> guard process   allowance -= 64; "ok"; exits
//
// One goroutine may use it at a time.
type Guard struct {
	args   []string
	child  *Side // nil: nothing is raised
	lines  *bufio.Scanner
	raised int // pages
}

// NewGuard makes a guard. args make this program call [GuardMain].
func NewGuard(args []string) *Guard { return &Guard{args: args} }

// Raise adds pages to the allowance, once before Restore. On an error the allowance is
// unchanged, and programs use fewer or no hugepages.
func (g *Guard) Raise(pages int) (err error) {
	if g.child != nil {
		return errors.New("hugepage guard: raised already")
	}
	// Its own session: it outlives its parent.
	g.child, err = newSide(g.args, nil, func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("hugepage guard: %w", err)
	}
	g.lines, g.raised = bufio.NewScanner(g.child.Control), pages
	fmt.Fprintln(g.child.Control, pages)
	if err := g.answer(); err != nil {
		_ = g.child.Close()
		g.child = nil
		return err
	}
	return nil
}

// Restore takes back what Raise has added, even if the guard process was killed. Pages in use
// stay with their users until they free them.
func (g *Guard) Restore() error {
	if g.child == nil {
		return nil
	}
	_ = g.child.Control.(*net.UnixConn).CloseWrite()
	err := g.answer()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.Join(err, hugepages.LowerOvercommit(g.raised))
	}
	_ = g.child.Close()
	g.child = nil
	return err
}

// answer is the next line of the process, "ok" or an error's text.
func (g *Guard) answer() (err error) {
	switch g.lines.Scan(); g.lines.Text() {
	case "ok":
		return nil
	case "":
		err = errors.Join(io.ErrUnexpectedEOF, g.lines.Err())
	default:
		err = errors.New(g.lines.Text())
	}
	return fmt.Errorf("hugepage guard: %w", err)
}

// GuardMain is the guard process.
func GuardMain() error {
	control, err := Control()
	if err != nil {
		return err
	}
	defer control.Close()
	// It ends with its parent, but the parent's signals must not end it first.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	return guard(control, hugepages.Overcommit)
}

// restoreTries is how often a guard tries to take back what it has raised: another program may
// change the pool at the same time.
const restoreTries = 3

// guard raises the allowance by as many pages as its first line says, and takes them back when
// the connection ends; it answers both. overcommit raises it and returns how to take it back.
func guard(control io.ReadWriter, overcommit func(int) (func() error, error)) error {
	answer := func(err error) error {
		text := "ok"
		if err != nil {
			text = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		_, _ = fmt.Fprintln(control, text) // the parent may be gone
		return err
	}
	lines := bufio.NewScanner(control)
	lines.Scan()
	pages, err := strconv.Atoi(lines.Text())
	var restore func() error
	if err == nil {
		restore, err = overcommit(pages)
	}
	if answer(err) != nil {
		return nil // the parent knows
	}
	for lines.Scan() {
	}
	for range restoreTries {
		if err = restore(); err == nil {
			break
		}
	}
	return answer(err)
}
