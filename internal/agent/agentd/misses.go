package agentd

import (
	"sync"
	"time"
)

// A program learns from the answer to OpShmLink whether another queue of the interface has a VI
// number, of whatever user. It needs that for the peer of a connection only, which has told it the
// number. So a program misses when its peer has just ended, and a user may miss so many times.
const (
	maxMisses  = 64          // at once
	missAgain  = time.Second // after which there is one more
	maxMissers = 4096        // users that are remembered one by one
)

// misses is how many links users have asked for in vain. It does not depend on accounts, which
// are forgotten when they are empty. The zero value is ready.
type misses struct {
	mu sync.Mutex
	// until is when a user has all of maxMisses again. Those whose time is over are as good as forgotten.
	until  map[uint32]time.Time
	others time.Time // of the users that there was no room for
}

// left reports whether a user may miss once more.
func (m *misses) left(user uint32, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, ok := m.until[user]
	if !ok && len(m.until) >= maxMissers {
		until = m.others
	}
	return until.Sub(now) <= (maxMisses-1)*missAgain
}

// add notes that a user has missed. Those who ask at the same time may miss more often than they
// may; they wait longer for the next time.
func (m *misses) add(user uint32, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.until[user]; !ok && len(m.until) >= maxMissers {
		for u, until := range m.until {
			if !until.After(now) {
				delete(m.until, u)
			}
		}
		if len(m.until) >= maxMissers {
			m.others = oneMore(m.others, now)
			return
		}
	}
	if m.until == nil {
		m.until = make(map[uint32]time.Time)
	}
	m.until[user] = oneMore(m.until[user], now)
}

func oneMore(until, now time.Time) time.Time {
	if until.Before(now) {
		until = now
	}
	return until.Add(missAgain)
}
