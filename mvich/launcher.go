package mvich

import (
	"errors"
	"fmt"
	"sync"
)

// Launcher is what has started the ranks: it tells a rank its number, and
// carries a few short values between the ranks before they can talk to each
// other. Calls come one at a time. Package mvich/pmi has one for mpiexec; [Local]
// makes those of ranks in one process.
type Launcher interface {
	Rank() int // of this process, 0 to Size()-1
	Size() int // ranks of the job
	// Put publishes a value, of letters, digits and punctuation but no space.
	// Others can Get it once they and this rank have come back from Fence.
	Put(key, value string) error
	Get(key string) (string, error)
	// Fence waits until all ranks have called it.
	Fence() error
	// Abort ends the job, with the exit code for whoever started it.
	Abort(code int) error
	// Close says that this rank is done.
	Close() error
}

// Local makes the launchers for size ranks of this process: element i is that of
// rank i.
func Local(size int) []Launcher {
	job := &localJob{size: size, values: make(map[string]string)}
	job.moved = sync.NewCond(&job.mu)
	all := make([]Launcher, size)
	for i := range all {
		all[i] = &localRank{job: job, rank: i}
	}
	return all
}

type localJob struct {
	size int

	mu     sync.Mutex
	moved  *sync.Cond // a fence is complete, or over
	values map[string]string
	inside int   // ranks in the fence
	turn   int   // fences that are complete
	over   error // why no fence will be complete any more
}

type localRank struct {
	job  *localJob
	rank int
}

var errRankClosed = errors.New("mvich: a rank has left the job")

func (l *localRank) Rank() int { return l.rank }
func (l *localRank) Size() int { return l.job.size }

func (l *localRank) Put(key, value string) error {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	l.job.values[key] = value
	return nil
}

func (l *localRank) Get(key string) (string, error) {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	value, ok := l.job.values[key]
	if !ok {
		return "", fmt.Errorf("mvich: no rank has put %q", key)
	}
	return value, nil
}

func (l *localRank) Fence() error {
	j := l.job
	j.mu.Lock()
	defer j.mu.Unlock()
	turn := j.turn
	if j.inside++; j.inside == j.size {
		j.inside = 0
		j.turn++
		j.moved.Broadcast()
	}
	for j.turn == turn {
		if j.over != nil {
			return j.over
		}
		j.moved.Wait()
	}
	return nil
}

func (l *localRank) Abort(code int) error {
	l.end(fmt.Errorf("mvich: rank %d has aborted the job with code %d", l.rank, code))
	return nil
}

func (l *localRank) Close() error {
	l.end(errRankClosed)
	return nil
}

func (l *localRank) end(why error) {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	l.job.over = errors.Join(l.job.over, why)
	l.job.moved.Broadcast()
}
