package mvich

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// How the ranks of a job find each other:
//
//  1. A [Launcher] gives each rank its number, and carries values between them.
//  2. meet publishes a record: address, token, place, and the settings on which all must agree.
//  3. After the fence it reads the records of the others, and fails if their settings do not match.
//  4. Places show whether ranks share processors: it is useless to poll for a rank that needs the same processor.

// Launcher is the process manager that started the ranks. It gives a rank its number, and carries a few short values
// between ranks before they are connected. Its methods are called one at a time. Package mvich/pmi has one for
// mpiexec; [Local] makes those of ranks in one process.
type Launcher interface {
	Rank() int // of this process, 0 to Size()-1
	Size() int // ranks of the job
	// Put publishes a value, of letters, digits and punctuation but no space. Others can Get it once they and this
	// rank have come back from Fence.
	Put(key, value string) error
	Get(key string) (string, error)
	// Fence waits until all ranks have called it.
	Fence() error
	// Abort ends the job, which exits with the code.
	Abort(code int) error
	// Close: this rank is done.
	Close() error
}

var _ Launcher = (*pmi.Client)(nil)

// Local makes the launchers for size ranks of this process: element i is that of rank i.
//
// If a rank aborts the job, calls of all ranks fail as after World.Stop.
func Local(size int) []Launcher {
	job := &localJob{Job: pmi.NewJob(size)}
	all := make([]Launcher, size)
	for rank := range all {
		all[rank] = localRank{job, rank}
	}
	return all
}

type localRank struct {
	*localJob
	rank int
}

// localJob is what the ranks of a process share.
type localJob struct {
	*pmi.Job

	mu      sync.Mutex
	worlds  []*World // that have begun
	aborted error
}

// began has w end when the job is aborted, or has been.
func (j *localJob) began(w *World) {
	j.mu.Lock()
	j.worlds = append(j.worlds, w)
	err := j.aborted
	j.mu.Unlock()
	if err != nil {
		w.Stop(err)
	}
}

func (j *localJob) abort(err error) {
	j.mu.Lock()
	if j.aborted == nil {
		j.aborted = err
	}
	worlds := j.worlds
	j.mu.Unlock()
	j.End(err)
	for _, w := range worlds {
		w.Stop(err)
	}
}

var errRankClosed = errors.New("mvich: a rank has left the job")

func (l localRank) Rank() int { return l.rank }

func (l localRank) Abort(code int) error {
	l.abort(fmt.Errorf("mvich: rank %d has aborted the job with code %d", l.rank, code))
	return nil
}

func (l localRank) Close() error {
	l.End(errRankClosed)
	return nil
}

// netAddress is where a rank listens, and the source of its requests. The random token proves that a request comes
// from a rank of the job, and identifies the rank.
type netAddress struct {
	addr  netip.Addr
	token string
}

func (a netAddress) vipl() vipl.NetAddress {
	return vipl.NetAddress{Host: a.addr, Discriminator: []byte(a.token)}
}

// meet publishes this rank's address and reads those of the others.
func (w *World) meet() error {
	own, where := w.self().host, here()
	if !own.addr.IsValid() {
		return fmt.Errorf("%w: the interface has no address: give it one", ErrSettings)
	}
	if err := w.launcher.Put(recordKey(w.rank), w.record(own, where)); err != nil {
		return fmt.Errorf("mvich: publishing the address: %w", err)
	}
	if err := w.launcher.Fence(); err != nil {
		return fmt.Errorf("mvich: waiting for the other ranks: %w", err)
	}
	var others []place
	tokens := make(map[string]*peer)
	for rank, p := range w.peers {
		if rank == w.rank {
			continue
		}
		text, err := w.launcher.Get(recordKey(rank))
		if err != nil {
			return fmt.Errorf("mvich: the address of rank %d: %w", rank, err)
		}
		var at place
		if p.host, at, err = w.parseRecord(text); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		// A caller is known by its token.
		if t := p.host.token; t == "" || t == livenessToken || t == own.token || tokens[t] != nil {
			return fmt.Errorf("rank %d: %w: it published the token %q, which is not its alone", rank, ErrSettings, t)
		}
		tokens[p.host.token] = p
		others = append(others, at)
	}
	w.set.fillDefaults(oversubscribed(where, others))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spin, w.tokens = w.set.spin, tokens // until now callers were rejected, and call again
	return nil
}

func recordKey(rank int) string { return fmt.Sprintf("mvich-%d", rank) }

// record is what a rank publishes: its address, its token, where it runs, and what must be the same on all.
func (w *World) record(a netAddress, at place) string {
	return strings.Join([]string{a.addr.String(), a.token, at.String(), w.terms()}, ",")
}

// protocolVersion is the version of the packets and of how ranks use them.
const protocolVersion = 2

// terms are the version and the settings on which ranks must agree.
func (w *World) terms() string {
	order := "little"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		order = "big"
	}
	return fmt.Sprintf("mvich%d/%s-endian/int%d/vbuf=%d/credits=%d", protocolVersion, order, strconv.IntSize, w.set.vbufSize(), w.set.credits)
}

func (w *World) parseRecord(s string) (a netAddress, at place, err error) {
	fields := strings.Split(s, ",")
	if len(fields) != 4 {
		return a, at, fmt.Errorf("%w: it published %q", ErrSettings, s)
	}
	addr, err := netip.ParseAddr(fields[0])
	if err == nil {
		at, err = parsePlace(fields[2])
	}
	if err != nil {
		return a, at, fmt.Errorf("%w: it published %q: %w", ErrSettings, s, err)
	}
	if fields[3] != w.terms() {
		return a, at, fmt.Errorf("%w: it has %q, this rank %q: use one version of mvich, one kind of machine, and the same options",
			ErrSettings, fields[3], w.terms())
	}
	return netAddress{addr: addr, token: fields[1]}, at, nil
}

// bootFile has a number that differs on each machine, except containers of one, and after each boot.
const bootFile = "/proc/sys/kernel/random/boot_id"

// place is where a rank runs.
type place struct {
	machine string
	cpus    *big.Int // a bit for each that it may use
}

// here returns this rank's place. If the system does not provide a machine's identity, the rank counts as alone on a
// machine.
func here() place {
	p := place{machine: rand.Text(), cpus: new(big.Int)}
	if id, err := os.ReadFile(bootFile); err == nil {
		p.machine = strings.TrimSpace(string(id))
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for i := range len(set) * 64 {
			if set.IsSet(i) {
				p.cpus.SetBit(p.cpus, i, 1)
			}
		}
	}
	return p
}

func (p place) String() string { return p.machine + "/" + p.cpus.Text(16) }

func parsePlace(s string) (p place, err error) {
	machine, cpus, _ := strings.Cut(s, "/")
	p.machine, p.cpus = machine, new(big.Int)
	if _, ok := p.cpus.SetString(cpus, 16); !ok || p.cpus.Sign() < 0 {
		return p, fmt.Errorf("%w: processors %q", ErrSettings, cpus)
	}
	return p, nil
}

// oversubscribed reports whether the ranks on this machine outnumber the processors that they may use together.
func oversubscribed(own place, others []place) bool {
	ranks, cpus := 1, new(big.Int).Set(own.cpus)
	for _, p := range others {
		if p.machine == own.machine {
			ranks++
			cpus.Or(cpus, p.cpus)
		}
	}
	n := 0
	for i := range cpus.BitLen() {
		n += int(cpus.Bit(i))
	}
	return n > 0 && ranks > n
}
