package doctor

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/kagent"
)

// Gather reads the facts of the host and of interfaces of the calling thread's
// network namespace. It changes nothing. Only an interface that is not there is
// an error; what cannot be read is left out of the facts.
func Gather(nics ...string) (*Facts, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var f Facts
	f.Host.read(os.DirFS("/"))
	f.Host.ask()
	nicsOfAgent := f.Host.askAgent()
	for _, name := range nics {
		n, err := gatherNIC(name)
		if err != nil {
			return nil, err
		}
		for i := range nicsOfAgent {
			if nicsOfAgent[i].Index == n.Index {
				n.Agent = &nicsOfAgent[i]
			}
		}
		f.NICs = append(f.NICs, n)
	}
	return &f, nil
}

// ask gathers the facts that need system calls.
func (h *Host) ask() {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.setRelease(unix.ByteSliceToString(u.Release[:]))
	}
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
		h.Memlock = lim.Cur
	}
	h.CPUs = runtime.NumCPU()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.Socket = explainSocket(err)
	} else {
		unix.Close(fd)
	}
	h.Trial = tryDemux()
	h.SeesOthers = h.Capabilities&(1<<unix.CAP_SYS_PTRACE) != 0
}

// agentTime is how long the daemon may take to answer.
const agentTime = 2 * time.Second

// askAgent finds the daemon and asks for its status of the interfaces of the calling thread's
// network namespace.
func (h *Host) askAgent() []kagent.NICStatus {
	ctx, cancel := context.WithTimeout(context.Background(), agentTime)
	defer cancel()
	socket, here, st, err := agentclient.Find(ctx)
	_, named, _ := agentclient.Socket()
	h.Agent = Agent{Socket: socket, PID: st.PID, Here: here, Named: named, Served: st.Served, Starts: errors.Is(err, agentclient.ErrStarts)}
	if err != nil {
		h.Agent.PID, h.Agent.Reason, h.Agent.Unused = 0, err.Error(), unused(err)
	}
	if !here {
		return nil
	}
	return st.NICs
}

// unused says why [agentclient.Find] found an agent and does not use it; empty if it found none.
func unused(err error) Unused {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return Denied
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, agentclient.ErrStarts):
		return ""
	case agentclient.Absent(err):
		return Elsewhere
	}
	return Broken
}

func explainSocket(err error) string {
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		return "the kernel lacks CONFIG_XDP_SOCKETS"
	case errors.Is(err, unix.EPERM):
		return "not permitted: CAP_NET_RAW is missing"
	}
	return err.Error()
}

func (h *Host) setRelease(release string) {
	h.Release = release
	fmt.Sscanf(release, "%d.%d", &h.Major, &h.Minor)
}

// read gathers the facts that files of the file system root have.
func (h *Host) read(root fs.FS) {
	if release := line(root, "proc/sys/kernel/osrelease"); release != "" {
		h.setRelease(release)
	}
	h.Config = readConfig(root, h.Release)
	h.Capabilities, _ = EffectiveCapabilities(line(root, "proc/self/status"))
	h.Virtual = virtual(root)
	h.HugeNodes = hugeNodes(root)
	h.Overcommit = number(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages")
	h.THP = chosen(line(root, "sys/kernel/mm/transparent_hugepage/enabled"))
	h.Idle = idleStates(root)
	h.Governor = line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	h.BusyPoll = line(root, "proc/sys/net/core/busy_poll")
}

// line is the content of a short file, or nothing.
func line(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func number(root fs.FS, name string) int {
	n, _ := strconv.Atoi(line(root, name))
	return n
}

// chosen is the word in brackets of "always [madvise] never".
func chosen(s string) string {
	_, s, _ = strings.Cut(s, "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

func readConfig(root fs.FS, release string) map[string]string {
	if f, err := root.Open("proc/config.gz"); err == nil {
		defer f.Close()
		if z, err := gzip.NewReader(f); err == nil {
			return parseConfig(z)
		}
	}
	f, err := root.Open("boot/config-" + release)
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseConfig(f)
}

func parseConfig(r io.Reader) map[string]string {
	options := map[string]string{}
	for s := bufio.NewScanner(r); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), "="); ok && (value == "y" || value == "m") {
			options[name] = value
		}
	}
	return options
}

// EffectiveCapabilities reads them in the text of /proc/PID/status.
func EffectiveCapabilities(status string) (have uint64, ok bool) {
	for l := range strings.Lines(status) {
		if v, found := strings.CutPrefix(l, "CapEff:"); found {
			have, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return have, err == nil
		}
	}
	return 0, false
}

func virtual(root fs.FS) bool {
	for l := range strings.Lines(line(root, "proc/cpuinfo")) {
		if name, flags, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "flags" {
			return slices.Contains(strings.Fields(flags), "hypervisor")
		}
	}
	return false
}

func hugeNodes(root fs.FS) (nodes []HugeNode) {
	dirs, _ := fs.Glob(root, "sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB")
	for _, d := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(path.Dir(d))), "node"))
		if err == nil {
			nodes = append(nodes, HugeNode{n, number(root, d+"/nr_hugepages"), number(root, d+"/free_hugepages")})
		}
	}
	const all = "sys/kernel/mm/hugepages/hugepages-2048kB"
	if _, err := fs.Stat(root, all); nodes == nil && err == nil { // a kernel without NUMA
		nodes = []HugeNode{{0, number(root, all+"/nr_hugepages"), number(root, all+"/free_hugepages")}}
	}
	slices.SortFunc(nodes, func(a, b HugeNode) int { return a.Node - b.Node })
	return nodes
}

func idleStates(root fs.FS) (states []IdleState) {
	dirs, _ := fs.Glob(root, "sys/devices/system/cpu/cpu0/cpuidle/state[0-9]*")
	for _, d := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(d), "state"))
		if err != nil {
			continue
		}
		states = append(states, IdleState{
			Index: n, Name: line(root, d+"/name"), Latency: number(root, d+"/latency"),
			Disabled: line(root, d+"/disable") == "1",
		})
	}
	slices.SortFunc(states, func(a, b IdleState) int { return a.Index - b.Index })
	return states
}
