package programs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// answering listens at a program's path in dir, and answers each question by a function.
func answering(t *testing.T, dir string, answer func(c net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(dir, fmt.Sprint(os.Getpid())+".sock")
	ln, err := net.Listen("unix", path)
	nstest.Must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if n, _ := c.Read(make([]byte, 64)); n > 0 {
				answer(c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-ended
	})
	return path
}

// A program is asked at the socket that was looked at: not where a link leads that has taken its place.
func TestAskedWhereItWasFound(t *testing.T) {
	dir, elsewhere := private(t), private(t)
	hello := func(c net.Conn) { io.WriteString(c, "{}") }
	path, other := answering(t, dir, hello), answering(t, elsewhere, hello)
	found, _ := List([]string{dir})
	var v any
	if len(found) != 1 || found[0].Status(&v) != nil {
		t.Fatalf("%+v", found)
	}
	for _, who := range []func(*Program){func(p *Program) { p.PID++ }, func(p *Program) { p.UID++ }} {
		p := found[0]
		who(&p)
		if err := p.Status(&v); err == nil || !strings.Contains(err.Error(), "answers now") {
			t.Errorf("another process answers: %v", err)
		}
	}
	nstest.Must(t, errors.Join(os.Remove(path), os.Symlink(other, path)))
	if err := found[0].Status(&v); err == nil {
		t.Error("a link was followed")
	}
	nstest.Must(t, errors.Join(os.Remove(path), os.Remove(dir), os.Symlink(elsewhere, dir)))
	if err := found[0].Status(&v); err == nil {
		t.Error("a link in the place of the directory was followed")
	}
}

// In another user's directory only sockets of that user count, on which a process of that user answers.
func TestOwnerAnswers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := private(t)
	path := answering(t, dir, func(net.Conn) {})
	for _, c := range []struct {
		dir, socket int
		found       bool
	}{{0, 0, true}, {65534, 0, false}, {65534, 65534, false}, {0, 65534, false}} {
		nstest.Must(t, errors.Join(os.Chown(dir, c.dir, -1), os.Chown(path, c.socket, -1)))
		if found, _ := List([]string{dir}); (len(found) > 0) != c.found {
			t.Errorf("directory of user %d, socket of user %d, process of root: found %+v", c.dir, c.socket, found)
		}
	}
}

// A hostile answer costs the client no more than its budget, however short the answer is on the wire.
func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string]func(c net.Conn){
		"many objects": func(c net.Conn) { io.WriteString(c, "["+strings.Repeat("{},", budgetObjects)+"{}]") },
		"many members": func(c net.Conn) {
			io.WriteString(c, "["+strings.Repeat("1,", budgetMembers+1)+"1]")
		},
		"no end": func(c net.Conn) {
			for b := []byte(strings.Repeat(" ", 1<<16)); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		},
	} {
		dir := private(t)
		answering(t, dir, answer)
		found, _ := List([]string{dir})
		if len(found) != 1 {
			t.Fatalf("%+v", found)
		}
		var v []struct{}
		if err := found[0].Status(&v); !errors.Is(err, errBudget) {
			t.Errorf("%s: %v, want errBudget", name, err)
		}
	}
}

// The programs of a user share a budget, of time as well.
func TestBudgetIsShared(t *testing.T) {
	dir := private(t)
	answering(t, dir, func(c net.Conn) { io.WriteString(c, "["+strings.Repeat("{},", budgetObjects/2)+"{}]") })
	found, _ := List([]string{dir})
	if len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	var v []struct{}
	b := new(Budget)
	nstest.Check(t, found[0].StatusWithin(b, &v))
	if err := found[0].StatusWithin(b, &v); !errors.Is(err, errBudget) {
		t.Errorf("the second half and more: %v, want errBudget", err)
	}
	late := &Budget{end: time.Now().Add(-time.Second)}
	if err := found[0].StatusWithin(late, &v); !errors.Is(err, errBudget) {
		t.Errorf("after its time: %v, want errBudget", err)
	}
	if end, err := new(Budget).begin(); err != nil || time.Until(end) > waitLimit {
		t.Errorf("one program gets %v, %v", time.Until(end), err)
	}
}

// However many sockets are in a directory, a bounded number is looked at.
func TestManySockets(t *testing.T) {
	dir := private(t)
	for n := range maxSockets + 10 {
		nstest.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(n)+".sock"), nil, 0o600))
	}
	if n := len(sockets(dir)); n != maxSockets {
		t.Errorf("%d, want %d", n, maxSockets)
	}
}
