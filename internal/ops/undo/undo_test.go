package undo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/rundir"
	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/nstest"
)

// fake is a machine of a few settings.
type fake struct {
	values map[string]string
	fail   string // setting that cannot be set
	refuse error  // how a driver refuses tx-usecs
	half   string // setting that takes the value, and says that it has not
	crash  string // setting at which the process dies, before it is set
	after  string // and just after
	gone   bool   // interfaces are
	denied bool   // nothing may be set
	round  func(string) string
	sets   []string
}

var errCrash = errors.New("crash")

func (f *fake) Where(string) (Place, error) { return Place{Netns: 7, Cookie: 9, Ifindex: 3}, nil }
func (f *fake) Enter(c Change, do func(Setting) error) error {
	if f.gone && c.Interface != "" {
		return ErrGone
	}
	return do(c.Setting)
}
func (f *fake) Get(s Setting) (string, error) {
	v, ok := f.values[s.Name]
	if !ok {
		return "", ErrGone
	}
	return v, nil
}
func (f *fake) Set(s Setting, value string) error {
	if f.denied {
		return os.ErrPermission
	}
	if s.Kind == Coalesce && f.refuse != nil {
		return s.absent(f.refuse)
	}
	switch s.Name {
	case f.fail:
		return errors.New("refused")
	case f.crash:
		panic(errCrash)
	}
	if f.round != nil {
		value = f.round(value)
	}
	f.values[s.Name] = value
	f.sets = append(f.sets, s.Name+"="+value)
	switch s.Name {
	case f.half:
		return errors.New("refused")
	case f.after:
		panic(errCrash)
	}
	return nil
}

func file(name, value string) Step { return Step{Setting{Kind: File, Name: name}, value} }

func open(t *testing.T, dir string, f *fake) *Journal {
	t.Helper()
	j, err := Open(dir, "test", f)
	nstest.Must(t, err)
	return j
}

// set makes changes.
func set(t *testing.T, j *Journal, steps ...Step) {
	t.Helper()
	_, err := j.Apply(steps)
	nstest.Must(t, err)
}

// die makes changes until the process dies at one of them.
func die(t *testing.T, j *Journal, steps ...Step) {
	t.Helper()
	defer j.lock.Close() // as the kernel does
	defer func() { recover() }()
	j.Apply(steps)
	t.Error("it has not died")
}

// undone has another process undo one change. If kept is true, another program has set the value meanwhile, and it stays; else it
// goes back. Nothing is left behind.
func undone(t *testing.T, what, dir string, f *fake, kept bool) {
	t.Helper()
	j := open(t, dir, f)
	done, err := j.Undo()
	nstest.ErrorIf(t, err != nil || len(done) != 1 || (done[0].Kept != "") != kept, "%s: %+v, %v", what, done, err)
	nstest.Check(t, j.Close())
	leftIn(t, dir)
}

func leftIn(t *testing.T, dir string) {
	t.Helper()
	nstest.WantErr(t, "what is left", nstest.Err(os.Stat(dir)), os.ErrNotExist)
}

// What Apply changed goes back in reverse order, by another process, and
// nothing is left behind.
func TestApplyAndUndo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	f := &fake{values: map[string]string{"a": "1", "b": "2", "c": "3"}}
	j := open(t, dir, f)
	made, err := j.Apply([]Step{file("a", "10"), file("b", "2"), file("c", "30")})
	nstest.FatalIf(t, err != nil || len(made) != 2 || made[0].String() != "a: 1 -> 10", "%v, %v", made, err)
	made, err = j.Apply([]Step{file("a", "10")})
	if b, _ := json.Marshal(made); err != nil || string(b) != "[]" {
		t.Errorf("with nothing to change: %s, %v", b, err)
	}
	// Once more, to another value: the first one is remembered.
	set(t, j, file("a", "100"))
	j.Close()

	f.sets = nil
	j = open(t, dir, f)
	done, err := j.Undo()
	nstest.FatalIf(t, err != nil || len(done) != 2, "%v, %v", done, err)
	nstest.Same(t, "sets", f.sets, []string{"c=3", "a=1"})
	j.Close()
	leftIn(t, dir)
}

func TestUndoAfterCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	f := &fake{values: map[string]string{"a": "1", "b": "2"}, crash: "b"}
	j := open(t, dir, f)
	die(t, j, file("a", "10"), file("b", "20"))

	// The crash may also have come after the change.
	for _, b := range []string{"2", "20"} {
		f.crash, f.values["a"], f.values["b"] = "", "10", b
		text, err := os.ReadFile(j.path)
		nstest.Must(t, err)
		again := open(t, dir, f)
		if _, err := again.Undo(); err != nil {
			t.Fatal(err)
		}
		again.Close()
		nstest.ErrorIf(t, f.values["a"] != "1" || f.values["b"] != "2", "b was %s: now %v", b, f.values)
		leftIn(t, dir)
		nstest.Must(t, errors.Join(rundir.Make(dir), os.WriteFile(j.path, text, 0o644)))
	}
}

// A process that dies while it changes a setting does not know the new value. Undo must not take
// that value for a change by another program.
func TestUndoOfTheUnfinished(t *testing.T) {
	for name, dies := range map[string]func(f *fake){
		"before the change": func(f *fake) { f.crash = "a" },
		"behind it":         func(f *fake) { f.after = "a" },
	} {
		dir := filepath.Join(t.TempDir(), "state")
		f := &fake{values: map[string]string{"a": "0"}}
		f.round = func(v string) string { return map[string]string{"10": "16", "100": "64"}[v] }
		j := open(t, dir, f)
		set(t, j, file("a", "10"))
		dies(f)
		die(t, j, file("a", "100"))

		f.crash, f.after, f.round = "", "", nil
		undone(t, name, dir, f, false)
		nstest.Equal(t, name, f.values["a"], "0")
	}
}

// Once the value of an unfinished change was read again, it is known: what another program sets
// after that stays.
func TestFinish(t *testing.T) {
	for name, c := range map[string]struct {
		again   fake
		value   string
		refused bool
	}{
		"as it is wished":          {fake{}, "10", false},
		"refused":                  {fake{fail: "a"}, "20", true},
		"stays as it is":           {fake{round: func(string) string { return "10" }}, "11", false},
		"refused, and yet changed": {fake{half: "a"}, "20", true},
	} {
		dir := filepath.Join(t.TempDir(), "state")
		f := &fake{values: map[string]string{"a": "1"}, after: "a"}
		j := open(t, dir, f)
		die(t, j, file("a", "10"))

		c.again.values = f.values
		j = open(t, dir, &c.again)
		_, err := j.Apply([]Step{file("a", c.value)})
		nstest.ErrorIf(t, (err != nil) != c.refused, "%s: %v", name, err)
		j.Close()
		f = &fake{values: map[string]string{"a": "30"}}
		undone(t, name, dir, f, true) // from the file
		nstest.Equal(t, name, f.values["a"], "30")
	}
}

func TestUndoKeepsWhatOthersChanged(t *testing.T) {
	f := &fake{values: map[string]string{"a": "1", "b": "2", "c": "3"}}
	j := open(t, t.TempDir(), f)
	defer j.Close()
	onNIC := Step{Setting{Feature, "eth0", "c"}, "30"}
	set(t, j, file("a", "10"), file("b", "20"), onNIC)
	f.values["a"], f.gone = "11", true
	done, err := j.Undo()
	nstest.Must(t, err)
	want := []Undone{{Kept: "it is gone"}, {}, {Kept: "another program has set it to 11 since"}}
	nstest.Same(t, "done", done, want, cmpopts.IgnoreFields(Undone{}, "Change"))
	nstest.ErrorIf(t, f.values["a"] != "11" || f.values["b"] != "2" || len(j.changes) != 0,
		"now %v, %v", f.values, j.changes)
}

// A value that the kernel rounds is restored, too, and is not taken for a change by another
// program. A value that the kernel leaves as it was is no change.
func TestUndoRounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	f := &fake{values: map[string]string{"a": "0", "b": "16"}}
	f.round = func(v string) string { return map[string]string{"100": "64", "200": "128", "17": "16"}[v] }
	j := open(t, dir, f)
	made, err := j.Apply([]Step{file("a", "100"), file("b", "17")})
	nstest.FatalIf(t, err != nil || len(made) != 1 || made[0].String() != "a: 0 -> 64", "%v, %v", made, err)
	if made, err = j.Apply([]Step{file("a", "200")}); err != nil || len(made) != 1 {
		t.Fatalf("%v, %v", made, err)
	}
	j.Close()

	f.round = nil
	j = open(t, dir, f) // from the file
	if c := j.changes; len(c) != 1 || c[0].Before != "0" || c[0].After != "128" {
		t.Errorf("list: %v", c)
	}
	j.Close()
	undone(t, "rounded", dir, f, false)
	nstest.Equal(t, "value", f.values["a"], "0")
}

// What cannot be undone stays in the list, in its order; the rest goes back.
func TestUndoFails(t *testing.T) {
	dir := t.TempDir()
	f := &fake{values: map[string]string{"a": "1", "b": "2", "c": "3"}}
	j := open(t, dir, f)
	set(t, j, file("a", "10"), file("b", "20"), file("c", "30"))
	f.fail = "b"
	nstest.ErrSays(t, "Undo", nstest.Err(j.Undo()), "b: refused")
	j.Close()
	f.fail = ""
	j = open(t, dir, f)
	defer j.Close()
	if c := j.changes; len(c) != 1 || c[0].Name != "b" {
		t.Fatalf("left: %v", c)
	}
	if _, err := j.Undo(); err != nil || f.values["b"] != "2" {
		t.Errorf("%v, %v", err, f.values)
	}
}

// Settings go back, and the list goes, while the file system of the list is full.
func TestUndoOnFullDisk(t *testing.T) {
	nstest.Require(t)
	dir, page := t.TempDir(), os.Getpagesize()
	f := &fake{values: map[string]string{"a": "1", "b": "2"}}
	thread.Run(func() { // which sees the file system
		nstest.Check(t, errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", 2*page))))
		j, err := Open(filepath.Join(dir, "state"), "test", f)
		nstest.Check(t, err)
		_, err = j.Apply([]Step{file("a", "10"), file("b", "20")})
		nstest.Check(t, errors.Join(err, os.WriteFile(filepath.Join(dir, "full"), make([]byte, page), 0o600)))
		_, err = j.Undo()
		nstest.Check(t, errors.Join(err, j.Close()))
		leftIn(t, filepath.Join(dir, "state"))
	})
	nstest.Same(t, "settings", f.values, map[string]string{"a": "1", "b": "2"})
}

// A change that is refused is not recorded.
func TestApplyFails(t *testing.T) {
	f := &fake{values: map[string]string{"a": "1", "b": "2"}, fail: "b"}
	j := open(t, t.TempDir(), f)
	defer j.Close()
	if _, err := j.Apply([]Step{file("a", "10"), file("b", "20")}); err == nil {
		t.Fatal("no error")
	}
	if c := j.changes; len(c) != 1 || c[0].Name != "a" {
		t.Errorf("list: %v", c)
	}
	nstest.WantErr(t, "Apply", nstest.Err(j.Apply([]Step{file("nothing", "1")})), ErrGone)
}

// What a driver refuses keeps no other setting from being changed; a lack of privilege does.
func TestApplyPastRefusal(t *testing.T) {
	f := &fake{values: map[string]string{"a": "1", "b": "2", "c": "3"}, fail: "a"}
	j := open(t, t.TempDir(), f)
	defer j.Close()
	steps := []Step{file("nothing", "1"), file("a", "10"), file("b", "20"), file("c", "30")}
	made, err := j.Apply(steps)
	if err == nil || !strings.Contains(err.Error(), "nothing: ") || !strings.Contains(err.Error(), "a: set to 10: refused") {
		t.Errorf("the error does not name what was refused: %v", err)
	}
	nstest.ErrorIf(t, len(made) != 2 || len(j.changes) != 2 || f.values["b"]+f.values["c"] != "2030",
		"made: %v; list: %v; values: %v", made, j.changes, f.values)
	f.denied = true
	made, err = j.Apply([]Step{file("b", "200"), file("c", "300")})
	nstest.ErrorIf(t, len(made) != 0 || !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "c: "),
		"without privilege: %v, %v", made, err)
}

// A driver without moderation of its own for TX reads as 0 there and refuses another value: that is no failure, and no change.
func TestOneModeration(t *testing.T) {
	for _, c := range []struct {
		name          string
		refused, want error
	}{
		{"tx-usecs", unix.EOPNOTSUPP, nil}, {"tx-usecs", unix.EINVAL, nil}, {"tx-usecs", unix.ENODEV, unix.ENODEV}, {"rx-usecs", unix.EINVAL, unix.EINVAL},
	} {
		f := &fake{values: map[string]string{c.name: "0"}, refuse: c.refused}
		j := open(t, t.TempDir(), f)
		made, err := j.Apply([]Step{{Setting{Coalesce, "eth0", c.name}, "50"}})
		nstest.WantErr(t, c.name, err, c.want)
		nstest.ErrorIf(t, len(made)+len(j.changes) > 0, "%s: made %v, list %v", c.name, made, j.changes)
		nstest.Check(t, j.Close())
	}
}

func TestDamagedList(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "test.json")
	nstest.Must(t, os.WriteFile(path, []byte("{"), 0o644))
	nstest.ErrSays(t, "Open", nstest.Err(Open(dir, "test", &fake{})), path)
	for _, name := range []string{"/etc/passwd", "/sys/../etc/passwd", "sys/x", "/proc/self/mem", "/proc/sys/kernel/core_pattern",
		"/sys/kernel/uevent_helper", "/sys/devices/system/cpu/cpu0/../../../../kernel/uevent_helper", "/sys/devices/system/cpu/cpu0/online"} {
		s := Setting{Kind: File, Name: name}
		nstest.ErrorIf(t, nstest.Err(Machine{}.Get(s)) == nil, "Get of %s", name)
		nstest.ErrorIf(t, Machine{}.Set(s, "x") == nil, "Set of %s", name)
	}
	nstest.ErrSays(t, "Set of an interface's file", Machine{}.Set(Setting{NetFile, "lo", "ifalias"}, "x"), "threaded")
	for _, name := range []string{"/sys/devices/system/cpu/cpu10/cpuidle/state2/disable", "/sys/kernel/mm/transparent_hugepage/enabled",
		"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"} {
		nstest.Check(t, allowed(name))
	}
}

// A list or directory that others can write is not trusted, nor is a link of theirs followed.
func TestListOfOthers(t *testing.T) {
	for what, plant := range map[string]func(dir, list string) error{
		"directory for all": func(dir, _ string) error { return os.Chmod(dir, 0o777) },
		"list for all":      func(_, list string) error { return os.Chmod(list, 0o666) },
		"link": func(_, list string) error {
			return errors.Join(os.Rename(list, list+".other"), os.Symlink(list+".other", list))
		},
		"directory of another user": func(dir, _ string) error { return os.Chown(dir, 60001, -1) },
		"list of another user":      func(_, list string) error { return os.Chown(list, 60001, -1) },
	} {
		t.Run(what, func(t *testing.T) {
			if strings.Contains(what, "another user") && os.Geteuid() != 0 {
				t.Skip("takes root, to give it away")
			}
			dir := filepath.Join(t.TempDir(), "state")
			f := &fake{values: map[string]string{"a": "1"}}
			j := open(t, dir, f)
			set(t, j, file("a", "10"))
			j.Close()
			nstest.Must(t, plant(dir, j.path))
			nstest.ErrSays(t, "Open", nstest.Err(Open(dir, "test", f)), "VIA_STATE_DIR") // what to do
		})
	}
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	state := filepath.Join(dir, "state")
	f := &fake{values: map[string]string{"a": "1"}}
	j := open(t, state, f)
	nstest.Must(t, errors.Join(os.WriteFile(target, []byte("mine"), 0o600), os.Symlink(target, j.path+".new")))
	set(t, j, file("a", "10"))
	if b, err := os.ReadFile(target); string(b) != "mine" {
		t.Errorf("what a link names has %q now, %v", b, err)
	}
	j.Close()
}

// harmless are the paths that a list may name, in other words than allowed's.
var harmless = regexp.MustCompile(`^/sys/(kernel/mm/(hugepages/hugepages-2048kB/nr_hugepages|transparent_hugepage/enabled)|` +
	`devices/system/(node/node[^/]*/hugepages/hugepages-2048kB/nr_hugepages|` +
	`cpu/cpu[^/]*/(cpufreq/scaling_governor|cpuidle/state[^/]*/disable)))$`)

// A list that has outlived a reboot is dropped: the same values are other programs' now, and the ones before are those of the
// other boot.
func TestListOfAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	m := &fake{values: map[string]string{"pages": "0", "governor": "powersave"}}
	j := open(t, dir, m)
	set(t, j, file("pages", "512"), file("governor", "performance"))
	nstest.Must(t, j.Close())
	b, err := os.ReadFile(j.path)
	nstest.Must(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	nstest.Must(t, err)
	other := strings.ReplaceAll(string(b), strings.TrimSpace(string(boot)), "11111111-2222-3333-4444-555555555555")
	nstest.Must(t, os.WriteFile(j.path, []byte(other), 0o600))

	m.values["governor"], m.sets = "schedutil", nil // the reboot has restored both, and another program has set pages
	j = open(t, dir, m)
	set(t, j, file("governor", "performance"))
	done, err := j.Undo()
	nstest.Must(t, err)
	nstest.Must(t, j.Close())
	nstest.ErrorIf(t, len(done) != 1 || m.values["pages"] != "512" || m.values["governor"] != "schedutil",
		"undone: %v; values %v; want 512 pages and schedutil", done, m.values)
	leftIn(t, j.path)
}

// FuzzJournal: any list is refused as a whole, or names only files that doctor and tune set, and is read back
// unchanged.
func FuzzJournal(f *testing.F) {
	for _, c := range []Change{
		{Setting: Setting{Kind: File, Name: "/sys/kernel/mm/transparent_hugepage/enabled"}, Before: "never", After: "always"},
		{Setting: Setting{Kind: File, Name: "/sys/devices/system/cpu/cpu0/../../../../../etc/passwd"}, Before: "x", After: "y"},
		{Setting: Setting{Kind: File, Name: "/sys/devices/system/cpu/cpu../cpuidle/state0/disable"}, Before: "x", After: "y"},
		{Setting: Setting{Kind: NetFile, Interface: "../..", Name: "threaded"}, Before: "0", After: "1", Netns: 1, Ifindex: 2},
	} {
		b, err := json.Marshal([]Change{c, c})
		nstest.Must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`[{"kind":"file","name":"\u0000"}]`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[null]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		changes, err := parse(b)
		if err != nil {
			return
		}
		for _, c := range changes {
			if allowed(c.Name) == nil && (!harmless.MatchString(c.Name) || filepath.Clean(c.Name) != c.Name) {
				t.Fatalf("%q may be written", c.Name)
			}
		}
		again, err := json.Marshal(changes)
		nstest.Must(t, err)
		if back, err := parse(again); err != nil || !slices.Equal(back, changes) {
			t.Fatalf("%+v is read again as %+v, %v", changes, back, err)
		}
	})
}
