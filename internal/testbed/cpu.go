package testbed

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PinThread moves the calling thread, which its goroutine has locked, to one CPU.
func PinThread(cpu int) error {
	set, err := only(cpu)
	if err != nil {
		return err
	}
	return refused(cpu, unix.SchedSetaffinity(0, set))
}

// only is the set of one CPU.
func only(cpu int) (*unix.CPUSet, error) {
	var set unix.CPUSet
	if cpu >= 0 { // CPUSet does not look
		set.Set(cpu)
	}
	if set.Count() == 0 {
		return nil, refused(cpu, unix.EINVAL)
	}
	return &set, nil
}

// refused explains why a process was not moved to a CPU.
func refused(cpu int, err error) error {
	if errors.Is(err, unix.EINVAL) {
		if cpus, aerr := AllowedCPUs(); aerr == nil {
			return fmt.Errorf("there is no CPU %d for this process: it may use %s", cpu, ranges(cpus))
		}
	}
	if err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// ranges are numbers in order as people write them: 0-3,8.
func ranges(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); i++ {
		first := i
		for i+1 < len(numbers) && numbers[i+1] == numbers[i]+1 {
			i++
		}
		if first > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, numbers[first])
		if i > first {
			fmt.Fprintf(&b, "-%d", numbers[i])
		}
	}
	return b.String()
}

// AllowedCPUs lists the CPUs that this process may use, in order.
func AllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for i := 0; len(cpus) < set.Count(); i++ {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// PinProcess moves all threads of this process to one CPU; threads to come
// inherit it.
func PinProcess(cpu int) error {
	set, err := only(cpu)
	if err != nil {
		return err
	}
	// A second pass catches threads that were started during the first one by
	// threads not yet moved.
	for range 2 {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return refused(cpu, err)
			}
		}
	}
	return nil
}
