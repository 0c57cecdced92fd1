package mvich

import (
	"crypto/rand"
	"fmt"
	"math/big"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A rank that waits polls, which is of no use where another one that it waits for
// has to run on the same processor. So each tells the others on which machine and
// processors it is, and where ranks are more than processors they sleep at once.

// bootFile has a number that is another one on each machine, but for containers of
// one, and after each start.
const bootFile = "/proc/sys/kernel/random/boot_id"

// place is where a rank runs.
type place struct {
	machine string
	cpus    *big.Int // a bit for each that it may use
}

// here is this rank's place. Where the system does not tell, it is a machine of
// its own.
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

// crowded says whether the ranks that share this one's machine are more than the
// processors that they may use, all together.
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
