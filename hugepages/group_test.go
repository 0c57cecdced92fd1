package hugepages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

const groupEnv = "HUGEPAGES_TEST_GROUP"

// An arena that does not fit below the limit of the process's control group is refused. Without a check the kernel kills the
// process, or the agent that makes the arena for it.
func TestMemoryGroup(t *testing.T) {
	if dir := os.Getenv(groupEnv); dir != "" {
		nstest.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0))
		for _, shared := range []bool{false, true} {
			a, err := New(Config{Size: 16 << 20, Shared: shared, Policy: Avoid})
			nstest.Must(t, err)
			nstest.Check(t, a.Close())
			policies := []Policy{Avoid}
			if p, err := readPool(); err != nil || p.available() == 0 { // the limit does not apply to free hugepages
				policies = append(policies, Auto)
			}
			for _, policy := range policies {
				_, err := New(Config{Size: 256 << 20, Shared: shared, Policy: policy})
				nstest.WantErr(t, "256 MB with a limit of 128 MB", err, unix.ENOMEM)
				t.Log(err)
			}
		}
		return
	}
	nstest.Require(t)
	files, _, group := memoryGroup("/proc/self")
	dir := filepath.Join(group, fmt.Sprintf("via-xdp-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		nstest.Lacks(t, "no control group can be made here: %v", err)
	}
	defer os.Remove(dir)
	if err := os.WriteFile(filepath.Join(dir, files.limit), []byte(strconv.Itoa(128<<20)), 0); err != nil {
		nstest.Lacks(t, "the control group has no limit of memory: %v", err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestMemoryGroup$")
	cmd.Env = append(os.Environ(), groupEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	nstest.ErrorIf(t, err != nil, "%v: %s", err, out)
	t.Logf("%s", out)
}

const limitEnv = "HUGEPAGES_TEST_LIMIT"

// A process whose virtual memory is limited learns that, and is not sent to the pool of huge pages.
func TestAddressSpaceLimit(t *testing.T) {
	if os.Getenv(limitEnv) != "" {
		nstest.Must(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 4 << 30, Max: 4 << 30}))
		_, err := New(Config{Size: 4 << 30, Policy: Require})
		nstest.WantErr(t, "4 GB with a limit of 4 GB", err, unix.ENOMEM)
		if !strings.Contains(err.Error(), "ulimit -v") || strings.Contains(err.Error(), "nr_hugepages") {
			t.Error(err)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAddressSpaceLimit$")
	cmd.Env = append(os.Environ(), limitEnv+"=1")
	out, err := cmd.CombinedOutput()
	nstest.ErrorIf(t, err != nil, "%v: %s", err, out)
}

// The limit that counts is the lowest of the groups that the process sees, and memory that the kernel can free does not count
// as used.
func TestGroupAvailable(t *testing.T) {
	const v2 = "21 20 0:1 %s %s rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	const v1 = "22 20 0:2 %s %s rw,nosuid - cgroup cgroup rw,memory\n23 20 0:3 / /nowhere rw - cgroup cgroup rw,cpu\n"
	stat2 := "anon 5\ninactive_file 3000\nactive_file 2000\nslab_reclaimable 1000\n"
	stat1 := "inactive_file 7\ntotal_inactive_file 3000\ntotal_active_file 2000\n"
	for name, c := range map[string]struct {
		cgroup, mount, root string
		files               map[string]string
		free                int
		limit               string // "": none
	}{
		"version 2": {"0::/a/b\n", v2, "/", map[string]string{
			"a/b/memory.max": "max\n", "a/b/memory.current": "1", "a/b/memory.stat": stat2,
			"a/memory.max": "20000\n", "a/memory.current": "16000\n", "a/memory.stat": stat2,
		}, 10000, "a/memory.max"},
		"the lower limit": {"0::/a/b\n", v2, "/", map[string]string{
			"a/b/memory.max": "9000\n", "a/b/memory.current": "7000", "a/b/memory.stat": "",
			"a/memory.max": "20000\n", "a/memory.current": "16000\n", "a/memory.stat": stat2,
		}, 2000, "a/b/memory.max"},
		"version 1 beside 2": {"12:cpu:/x\n4:memory:/a\n0::/y\n", v2 + v1, "/", map[string]string{
			"a/memory.limit_in_bytes": "8000\n", "a/memory.usage_in_bytes": "6000\n", "a/memory.stat": stat1,
		}, 7000, "a/memory.limit_in_bytes"},
		"version 1 without a limit": {"4:memory:/a\n", v1, "/", map[string]string{
			"a/memory.limit_in_bytes": "9223372036854771712\n", "a/memory.usage_in_bytes": "6000\n", "a/memory.stat": stat1,
		}, 0, ""},
		"container with a namespace": {"0::/\n", v2, "/", map[string]string{
			"memory.max": "8000\n", "memory.current": "6000\n", "memory.stat": "",
		}, 2000, "memory.max"},
		"container without a namespace": {"4:memory:/docker/12ab\n", v1, "/docker/12ab", map[string]string{
			"memory.limit_in_bytes": "8000\n", "memory.usage_in_bytes": "6000\n", "memory.stat": "",
		}, 2000, "memory.limit_in_bytes"},
		"above the namespace": {"0::/../other\n", v2, "/", map[string]string{
			"memory.max": "8000\n", "memory.current": "9000\n", "memory.stat": "",
		}, 0, "memory.max"},
		"not mounted": {"0::/a\n", v1, "/", nil, 0, ""},
		"none":        {"", v2, "/", nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			proc, top := filepath.Join(dir, "proc"), filepath.Join(dir, "top")
			write := func(path, text string) {
				nstest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				nstest.Must(t, os.WriteFile(path, []byte(text), 0o644))
			}
			write(filepath.Join(proc, "cgroup"), c.cgroup)
			mounts := fmt.Sprintf(c.mount, c.root, top)
			if c.mount == v2+v1 {
				mounts = fmt.Sprintf(c.mount, "/", "/unified", c.root, top)
			}
			write(filepath.Join(proc, "mountinfo"), "20 1 8:1 / / rw - ext4 /dev/root rw\n"+mounts)
			for file, text := range c.files {
				write(filepath.Join(top, file), text)
			}
			free, limit, ok := groupAvailable(proc)
			want := ""
			if c.limit != "" {
				want = filepath.Join(top, c.limit)
			}
			nstest.ErrorIf(t, ok != (want != "") || ok && (free != c.free || limit != want),
				"%d bytes below %q (%v), want %d below %q", free, limit, ok, c.free, want)
		})
	}
}
