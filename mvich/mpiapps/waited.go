package mpiapps

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// waited is how long the threads of this process could have run and had no CPU, all together, since they began; 0
// where the kernel does not tell.
func waited() (sum time.Duration) {
	tasks, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		var ran, delay int64
		if err != nil { // it has ended
			continue
		}
		if _, err := fmt.Sscan(string(b), &ran, &delay); err == nil {
			sum += time.Duration(delay)
		}
	}
	return sum
}
