package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// postgresProgram finds a program of PostgreSQL; Debian has only some of them on the path.
func postgresProgram(t *testing.T, name string) string {
	t.Helper()
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1]
	}
	return need(t, name, "postgresql")
}

// postgres is a server with a directory and an address of its own.
type postgres struct {
	cmd     *exec.Cmd
	address string
	log     bytes.Buffer
	ended   chan struct{}
}

func startPostgres(t *testing.T) *postgres {
	t.Helper()
	initdb, server := postgresProgram(t, "initdb"), postgresProgram(t, "postgres")
	dir, err := os.MkdirTemp("", "via-postgres") // that of the test is root's alone
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	var attr syscall.SysProcAttr
	if os.Getuid() == 0 { // it does not run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Skip(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		must(t, os.Chown(dir, uid, gid))
	}
	cluster := exec.Command(initdb, "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	cluster.SysProcAttr, cluster.Dir = &attr, "/"
	if out, err := cluster.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	host, port := ownHost(), "5499"
	p := &postgres{address: net.JoinHostPort(host, port), ended: make(chan struct{})}
	p.cmd = exec.Command(server, "-D", dir, "-h", host, "-p", port, "-k", "", "-F",
		"-c", "shared_buffers=32MB", "-c", "max_wal_size=256MB", "-c", "autovacuum=off")
	p.cmd.SysProcAttr, p.cmd.Dir, p.cmd.Stderr = &attr, "/", &p.log
	must(t, p.cmd.Start())
	go func() { p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		p.quit()
		if t.Failed() {
			t.Logf("the server says:\n%s", p.log.Bytes())
		}
	})
	for end := time.Now().Add(waitLimit); ; time.Sleep(20 * time.Millisecond) {
		err := p.client(t, p.address, "psql", "-c", "select 1").Run()
		if err == nil {
			return p
		}
		select {
		case <-p.ended:
			t.Fatalf("the server has ended: %s", p.log.Bytes())
		default:
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// quit ends the server at once, and all that it does.
func (p *postgres) quit() {
	p.cmd.Process.Signal(syscall.SIGQUIT)
	<-p.ended
}

// client is a program that talks with the server at an address, perhaps a proxy's.
func (p *postgres) client(t *testing.T, at, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	t.Cleanup(cancel)
	host, port, err := net.SplitHostPort(at)
	must(t, err)
	if name == "psql" {
		args = append([]string{"-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"}, args...)
	}
	cmd := exec.CommandContext(ctx, postgresProgram(t, name), args...)
	cmd.Env = append(os.Environ(), "PGHOST="+host, "PGPORT="+port, "PGUSER=postgres", "PGDATABASE=postgres",
		"PGAPPNAME="+t.Name(), "LC_ALL=C")
	return cmd
}

// run is a client that must succeed, and what it says.
func (p *postgres) run(t *testing.T, at, name string, args ...string) string {
	t.Helper()
	out, err := p.client(t, at, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// until waits until a query, which goes past the proxies, gives what it should.
func (p *postgres) until(t *testing.T, query, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(waitLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = p.run(t, p.address, "psql", "-c", query); got == want {
			return
		}
	}
	t.Fatalf("%s: %q, want %q", query, got, want)
}

// sessions counts those that a test has through the proxies: in this state, or in any.
func sessions(t *testing.T, state string) string {
	where := ""
	if state != "" {
		where = " and state = '" + state + "'"
	}
	return fmt.Sprintf("select count(*) from pg_stat_activity where application_name = '%s' and pid <> pg_backend_pid()%s", t.Name(), where)
}

// sum is the checksum of a table, by the server.
func (p *postgres) sum(t *testing.T, database, table string) string {
	t.Helper()
	return p.run(t, p.address, "psql", "-d", database, "-c",
		"select count(*), md5(string_agg(x::text, ',' order by n)) from "+table+" x")
}

// PostgreSQL and its programs talk through two proxies: its load generator, tables in and out, a cancelled query,
// a dump that is restored, and the death of either side during a query.
func TestPostgres(t *testing.T) {
	p := startPostgres(t)
	at := chain(t, p.address)
	rows := 100_000
	if testing.Short() {
		rows = 10_000
	}
	p.run(t, p.address, "psql", "-c", fmt.Sprintf("create table a as select n, md5(n::text) as text from generate_series(1, %d) n", rows))
	want := p.sum(t, "postgres", "a")

	t.Run("load", func(t *testing.T) {
		p.run(t, at, "pgbench", "-i", "-q")
		for _, way := range []string{"simple", "extended", "prepared"} {
			out := p.run(t, at, "pgbench", "-n", "-c", "8", "-j", "2", "-t", "5", "-M", way)
			if !strings.Contains(out, "processed: 40/40") {
				t.Errorf("%s: %s", way, out)
			}
		}
	})
	t.Run("copy", func(t *testing.T) {
		copy := p.client(t, at, "psql", "-c", "copy a to stdout")
		var text bytes.Buffer
		copy.Stdout = &text
		must(t, copy.Run())
		direct := sha256.Sum256([]byte(p.run(t, p.address, "psql", "-c", "copy a to stdout")))
		if got := sha256.Sum256(bytes.TrimSpace(text.Bytes())); got != direct {
			t.Errorf("other bytes came out than without proxies, %d of them", text.Len())
		}
		p.run(t, at, "psql", "-c", "create table b (like a)")
		copy = p.client(t, at, "psql", "-c", "copy b from stdin")
		copy.Stdin = &text
		if out, err := copy.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := p.sum(t, "postgres", "b"); got != want {
			t.Errorf("other bytes went in: %s, want %s", got, want)
		}
	})
	t.Run("dump", func(t *testing.T) {
		p.run(t, at, "createdb", "again")
		dump, read := p.client(t, at, "pg_dump", "-t", "a"), p.client(t, at, "psql", "-d", "again")
		pipe, err := dump.StdoutPipe()
		must(t, err)
		read.Stdin = pipe
		must(t, dump.Start())
		out, err := read.CombinedOutput()
		if err = errors.Join(err, dump.Wait()); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := p.sum(t, "again", "a"); got != want {
			t.Errorf("the copy of the dump: %s, want %s", got, want)
		}
	})
	// A query is cancelled by a separate connection.
	t.Run("cancel", func(t *testing.T) {
		query := p.client(t, at, "psql", "-c", "select pg_sleep(600)")
		var said bytes.Buffer
		query.Stderr = &said
		must(t, query.Start())
		p.until(t, sessions(t, "active"), "1")
		query.Process.Signal(syscall.SIGINT)
		if err := query.Wait(); err == nil || !strings.Contains(said.String(), "canceling statement due to user request") {
			t.Errorf("%v: %s", err, said.String())
		}
		p.until(t, sessions(t, ""), "0")
	})
	// The server learns that its client has died: an idle one, and one that does not read the server's data.
	t.Run("client dies", func(t *testing.T) {
		for query, state := range map[string]string{
			"begin; select 1;\n": "idle in transaction",
			"copy (select a.* from a, generate_series(1, 1000)) to stdout;\n": "active",
		} {
			client := p.client(t, at, "psql")
			in, err := client.StdinPipe()
			must(t, err)
			out, err := client.StdoutPipe() // only its first byte is read
			must(t, err)
			must(t, client.Start())
			io.WriteString(in, query)
			must(t, errOf(io.ReadFull(out, make([]byte, 1))))
			p.until(t, sessions(t, state), "1")
			client.Process.Kill()
			client.Wait()
			p.until(t, sessions(t, ""), "0")
		}
	})
	// And the client that the server has died.
	t.Run("server dies", func(t *testing.T) {
		query := p.client(t, at, "psql", "-c", "select pg_sleep(600)")
		var said bytes.Buffer
		query.Stderr = &said
		must(t, query.Start())
		p.until(t, sessions(t, "active"), "1")
		p.quit()
		if err := query.Wait(); err == nil || !strings.Contains(said.String(), "server closed the connection unexpectedly") {
			t.Errorf("%v: %s", err, said.String())
		}
	})
}
