package hugepages

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A control group can limit the memory of its processes. At the limit the kernel does not refuse memory: it kills a process of
// the group.

// groupFiles are a memory control group's files (admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst), and those of its statistics
// that count memory which the kernel can free.
type groupFiles struct {
	limit, usage string
	cache        []string
}

var (
	groupV2 = groupFiles{"memory.max", "memory.current", []string{"inactive_file", "active_file", "slab_reclaimable"}}
	groupV1 = groupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}}
)

// groupAvailable returns how many bytes a process can take before it reaches a limit of its control group, or of one above
// that, and the file of that limit. It knows the groups that the process sees: in a container, those of the container. proc is
// the process's directory in /proc. ok is false if there is no limit.
func groupAvailable(proc string) (free int, limit string, ok bool) {
	files, top, group := memoryGroup(proc)
	if top == "" {
		return 0, "", false
	}
	free = math.MaxInt
	for ; ; group = filepath.Dir(group) {
		if n, limited := files.available(group); limited && n < free {
			free, limit = n, filepath.Join(group, files.limit)
		}
		if len(group) <= len(top) {
			return free, limit, limit != ""
		}
	}
}

// available returns what is left below a group's limit.
func (f *groupFiles) available(group string) (n int, limited bool) {
	limit, err := readInt(filepath.Join(group, f.limit))
	if err != nil || limit >= boundless {
		return 0, false // "max" or a number without meaning; the root group has no file
	}
	usage, err := readInt(filepath.Join(group, f.usage))
	if err != nil {
		return 0, false
	}
	stat, err := os.Open(filepath.Join(group, "memory.stat"))
	if err != nil {
		return 0, false
	}
	defer stat.Close()
	for lines := bufio.NewScanner(stat); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.Atoi(value); err == nil && slices.Contains(f.cache, name) {
			usage -= v
		}
	}
	return max(0, limit-usage), true
}

// memoryGroup returns the directory of a process's memory control group, and that of the highest group that it sees; "" if
// there is none.
func memoryGroup(proc string) (files groupFiles, top, group string) {
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return files, "", ""
	}
	path, kind, option := "", "", ""
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) < 3:
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			files, path, kind, option = groupV1, f[2], "cgroup", "memory"
		case f[1] == "" && kind == "":
			files, path, kind = groupV2, f[2], "cgroup2"
		}
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil || kind == "" {
		return files, "", ""
	}
	for line := range strings.Lines(string(mounts)) {
		mount, source, _ := strings.Cut(line, " - ")
		m, s := strings.Fields(mount), strings.Fields(source)
		if len(m) < 5 || len(s) < 3 || s[0] != kind || option != "" && !slices.Contains(strings.Split(s[2], ","), option) {
			continue
		}
		root, point := m[3], m[4]
		below, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
		if !ok { // what is mounted is another part of the hierarchy: in a container, its own
			below = ""
		}
		return files, point, filepath.Join(point, filepath.Join("/", below))
	}
	return files, "", ""
}
