package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/kagent"
	"viaxdp/xdpnic"
)

// agentSettings is what the command runs.
type agentSettings struct {
	daemon  agentd.Daemon
	metrics string // address; empty: none
}

// agentFile is the settings file; docs/agent.md describes it.
type agentFile struct {
	Socket         string                   `toml:"socket"`
	Mode           string                   `toml:"mode"`
	Group          string                   `toml:"group"`
	Metrics        string                   `toml:"metrics"`
	MaxConnections int                      `toml:"max_connections"`
	Linger         *string                  `toml:"linger"`
	Quota          *quotaFile               `toml:"quota"`
	User           map[string]quotaFile     `toml:"user"`
	Interface      map[string]interfaceFile `toml:"interface"`
}

type quotaFile struct {
	Connections *int    `toml:"connections"`
	Processes   *int    `toml:"processes"`
	Queues      *int    `toml:"queues"`
	VIs         *int    `toml:"vis"`
	Pinned      *string `toml:"pinned"`
}

type interfaceFile struct {
	Port   uint16 `toml:"port"`
	MaxVIs int    `toml:"max_vis"`
	// Processes is a pointer since 0 is an error.
	Processes *int     `toml:"processes"`
	Mode      string   `toml:"mode"`
	Users     []string `toml:"users"`
	// ZeroCopy is as Users.
	ZeroCopy []string `toml:"zero_copy"`
}

// maxAgentSettings is more bytes than a settings file has.
const maxAgentSettings = 1 << 20

// readAgentSettings reads the file, which need not be there unless it was asked
// for.
func readAgentSettings(path string, asked bool) (s agentSettings, found bool, err error) {
	var b []byte
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, maxAgentSettings+1))
	}
	if len(b) > maxAgentSettings { // perhaps a device without an end
		err = fmt.Errorf("%s: more than %d bytes", path, maxAgentSettings)
	}
	if found = err == nil; errors.Is(err, fs.ErrNotExist) && !asked {
		b, err = nil, nil
	}
	if err != nil {
		return s, false, err
	}
	if s, err = parseAgentSettings(b); err != nil {
		return s, found, fmt.Errorf("%s: %w", path, err)
	}
	return s, found, nil
}

// override sets what the command line names.
func (s *agentSettings) override(socket, metrics string, interfaces []string) (err error) {
	for _, name := range interfaces {
		if s.daemon.Interfaces == nil {
			s.daemon.Interfaces = make(map[string]agentd.Interface)
		}
		if _, ok := s.daemon.Interfaces[name]; !ok {
			s.daemon.Interfaces[name] = agentd.Interface{}
		}
	}
	if socket != "" {
		// The descriptor store, which removes its socket beside it, is in another directory.
		if s.daemon.Socket, err = filepath.Abs(socket); err != nil {
			return err
		}
	}
	if metrics != "" {
		s.metrics = metrics
	}
	return nil
}

// checkMetrics validates the address for metrics, without looking up its host.
func (s *agentSettings) checkMetrics() error {
	if s.metrics == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s.metrics)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func parseAgentSettings(b []byte) (agentSettings, error) {
	var f agentFile
	dec := toml.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return agentSettings{}, tomlError(err)
	}
	return f.settings()
}

// wrongType is how the TOML package says that a value is of another type than the
// setting, in terms of Go.
var wrongType = regexp.MustCompile(`cannot decode TOML (string|integer|float|boolean|array|table) into .* of type \*?(string|int|uint16|\[\]string)$`)

var typeNames = map[string]string{
	"string": "text in quotes", "integer": "a number", "float": "a fraction", "boolean": "true or false", "array": "a list",
	"table": "a table", "int": "a number", "uint16": "a number", "[]string": "a list of names",
}

// tomlError says on which line what is wrong.
func tomlError(err error) error {
	var strict *toml.StrictMissingError
	var decode *toml.DecodeError
	switch {
	case errors.As(err, &strict) && len(strict.Errors) > 0:
		var lines []string
		for i := range strict.Errors {
			line, _ := strict.Errors[i].Position()
			lines = append(lines, fmt.Sprintf("line %d: there is no setting %s", line, strings.Join(strict.Errors[i].Key(), ".")))
		}
		return errors.New(strings.Join(lines, "; "))
	case errors.As(err, &decode):
		line, column := decode.Position()
		if m := wrongType.FindStringSubmatch(decode.Error()); m != nil {
			return fmt.Errorf("line %d: %s: want %s and not %s", line, strings.Join(decode.Key(), "."), typeNames[m[2]], typeNames[m[1]])
		}
		return fmt.Errorf("line %d, column %d: %s", line, column, strings.TrimPrefix(decode.Error(), "toml: "))
	}
	return err
}

func (f *agentFile) settings() (s agentSettings, err error) {
	s.metrics = f.Metrics
	d := &s.daemon
	d.Socket, d.Group, d.MaxConnections, d.Quota = f.Socket, f.Group, f.MaxConnections, agentd.DefaultQuota
	if d.Socket == "" {
		d.Socket = agentclient.DefaultSocket
	}
	if !filepath.IsAbs(d.Socket) {
		return s, fmt.Errorf("socket: %q is no absolute path", d.Socket)
	}
	if f.Mode != "" {
		m, err := strconv.ParseUint(f.Mode, 8, 32)
		if err != nil || m == 0 || m > 0o777 {
			return s, fmt.Errorf("mode: %q is no mode of a file, such as \"0660\"", f.Mode)
		}
		d.Mode = fs.FileMode(m)
	}
	if f.MaxConnections < 0 {
		return s, fmt.Errorf("max_connections: %d", f.MaxConnections)
	}
	if f.Linger != nil {
		if d.Linger, err = parseLinger(*f.Linger); err != nil {
			return s, err
		}
	}
	if f.Quota != nil {
		if d.Quota, err = f.Quota.apply(d.Quota); err != nil {
			return s, fmt.Errorf("quota.%w", err)
		}
	}
	d.Users = make(map[uint32]agentd.Quota)
	for name, q := range f.User {
		uid, err := userID(name)
		if err != nil {
			return s, fmt.Errorf("user.%s: %w", name, err)
		}
		if _, twice := d.Users[uid]; twice {
			return s, fmt.Errorf("user.%s: user %d is named twice", name, uid)
		}
		base := d.Quota
		if uid == 0 {
			base = agentd.Quota{}
		}
		if d.Users[uid], err = q.apply(base); err != nil {
			return s, fmt.Errorf("user.%s.%w", name, err)
		}
	}
	if f.Interface == nil {
		return s, nil
	}
	d.Interfaces = make(map[string]agentd.Interface)
	for name, i := range f.Interface {
		if d.Interfaces[name], err = i.settings(); err != nil {
			return s, fmt.Errorf("interface.%s.%w", name, err)
		}
	}
	return s, nil
}

func (f *interfaceFile) settings() (i agentd.Interface, err error) {
	i.Port, i.MaxVIs = f.Port, f.MaxVIs
	if f.MaxVIs != 0 && (f.MaxVIs < 2 || f.MaxVIs > 1<<16) {
		return i, fmt.Errorf("max_vis: %d, want 2 to %d (%d without it)", f.MaxVIs, 1<<16, kagent.DefaultMaxVIs)
	}
	if f.Processes != nil {
		if i.Processes = *f.Processes; i.Processes < 1 || i.Processes > agentd.MaxProcesses {
			return i, fmt.Errorf("processes: %d, want 1 (none share a queue) to %d (%d without it)", i.Processes, agentd.MaxProcesses, agentd.DefaultProcesses)
		}
	}
	if f.Mode != "" {
		if i.Mode, err = xdpnic.ParseMode(f.Mode); err != nil {
			return i, fmt.Errorf("mode: %w", err)
		}
	}
	users, err := parseGrant(f.Users)
	if err != nil {
		return i, fmt.Errorf("users: %w", err)
	}
	if i.Users, i.Groups = users.Users, users.Groups; f.Users != nil && i.Groups == nil {
		i.Users = append([]uint32{}, i.Users...) // of none: only root
	}
	if i.ZeroCopy, err = parseGrant(f.ZeroCopy); err != nil {
		return i, fmt.Errorf("zero_copy: %w", err)
	}
	return i, nil
}

// parseGrant reads a list of users, and groups as "@group", by name or number.
func parseGrant(names []string) (g agentd.Grant, err error) {
	for _, name := range names {
		list, number := &g.Users, userID
		if group, ok := strings.CutPrefix(name, "@"); ok {
			list, number, name = &g.Groups, groupID, group
		}
		id, err := number(name)
		if err != nil {
			return g, err
		}
		*list = append(*list, id)
	}
	return g, nil
}

// maxLinger bounds the setting linger.
const maxLinger = time.Hour

// parseLinger reads a duration, "0s" being none.
func parseLinger(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxLinger {
		return 0, fmt.Errorf("linger: %q is no time from \"0s\" to \"1h\", such as \"10s\"", s)
	}
	if d == 0 {
		return -1, nil
	}
	return d, nil
}

// apply sets what the file names.
func (f *quotaFile) apply(q agentd.Quota) (agentd.Quota, error) {
	for _, n := range []struct {
		name string
		from *int
		to   *int
	}{{"connections", f.Connections, &q.Connections}, {"processes", f.Processes, &q.Processes}, {"queues", f.Queues, &q.Queues}, {"vis", f.VIs, &q.VIs}} {
		if n.from == nil {
			continue
		}
		if *n.from < 0 {
			return q, fmt.Errorf("%s: %d, want 0 (no limit) or more", n.name, *n.from)
		}
		*n.to = *n.from
	}
	if f.Pinned != nil {
		bytes, err := parseSize(*f.Pinned)
		if err != nil {
			return q, fmt.Errorf("pinned: %w", err)
		}
		q.PinnedBytes = bytes
	}
	return q, nil
}

// parseSize reads a number of bytes: "0", "65536", "64KiB", "512MiB", "2GiB".
func parseSize(s string) (int, error) {
	number, shift := s, 0
	for unit, n := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(s, unit); ok {
			number, shift = strings.TrimSpace(rest), n
		}
	}
	n, err := strconv.ParseUint(number, 10, 63-shift)
	if err != nil {
		return 0, fmt.Errorf("%q is no size, such as \"512MiB\"", s)
	}
	return int(n << shift), nil
}

// groupID is the number of a group, by name or number.
func groupID(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(g.Gid, 10, 32)
	return uint32(n), err
}

// userID is the number of a user, by name or number.
func userID(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(n), err
}
