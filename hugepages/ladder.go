package hugepages

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// climb tries the steps that the policy allows, best first, and returns the first complete mapping.
//
// The two lower steps are one mapping: whether the advice yielded hugepages is known only after the pages are
// populated.
func climb(cfg Config) (*mapping, Info, error) {
	info := Info{Shared: cfg.Shared, PageSize: os.Getpagesize()}
	if cfg.Policy != Avoid {
		m, refusal := tryHugetlb(cfg)
		if refusal == nil {
			info.Kind, info.Size, info.Huge, info.PageSize = Hugetlb, len(m.mem), len(m.mem), hugeSize
			return m, info, nil
		}
		if cfg.Policy == Require {
			return nil, Info{}, fmt.Errorf("hugepages: required, but not available: %w", *refusal)
		}
		info.Refused = append(info.Refused, *refusal)
	} else {
		const cause, remedy = "the policy says avoid", "ask for Auto or Require"
		info.Refused = []Refusal{{Step: Hugetlb, Cause: cause, Remedy: remedy}, {Step: THP, Cause: cause, Remedy: remedy}}
	}
	m, refusal, err := tryPages(cfg, &info)
	if err != nil {
		return nil, Info{}, fmt.Errorf("hugepages: %w", err)
	}
	if refusal != nil {
		info.Refused = append(info.Refused, *refusal)
	}
	return m, info, nil
}

// tryHugetlb maps 2 MB pages of the pool. The kernel reserves them in mmap, which fails with ENOMEM if there are
// too few (Documentation/mm/hugetlbfs_reserv.rst). Limits of a cgroup or cpuset apply only when the pages are
// touched, so populating detects them.
func tryHugetlb(cfg Config) (*mapping, *Refusal) {
	size := cfg.MappedBytes()
	m, err := newMapping(size, cfg.Shared, true)
	if err == nil {
		if err = populate(m.mem); err == nil {
			return m, nil
		}
		err = errors.Join(err, m.close())
	}
	r := hugetlbRefusal(err, size/hugeSize)
	return nil, &r
}

// hugetlbRefusal explains why n pages of 2 MB are not available.
func hugetlbRefusal(err error, n int) Refusal {
	r := Refusal{Step: Hugetlb, Err: err}
	p, poolErr := readPool()
	switch {
	case errors.Is(poolErr, os.ErrNotExist):
		r.Cause = "the kernel has no pool of 2 MB pages"
		r.Remedy = "use a kernel with CONFIG_HUGETLBFS on a CPU with 2 MB pages"
	case errors.Is(err, errAddressSpace):
		r.Cause = "the process may not map so much, whatever pages are free"
		r.Remedy = "ask for a smaller arena, or raise the limit of the process (ulimit -v)"
	case errors.Is(err, unix.ENOMEM) && poolErr == nil:
		r.Cause = fmt.Sprintf("%d pages of 2 MB needed; of %d in the pool %d are free and %d of these reserved, %d more may be made on demand",
			n, p.total, p.free, p.reserved, max(0, p.overcommit-p.surplus))
		r.Remedy = fmt.Sprintf("echo %d > %s", p.total+max(1, n-(p.free-p.reserved)), poolDir+fileNr) // vm.nr_hugepages may be of another size
		switch {
		case n <= p.free-p.reserved: // so the kernel keeps them from this process
			r.Remedy = "raise the cgroup's limit (hugetlb.2MB.rsvd.max), or widen cpuset.mems"
		case n <= p.available():
			r.Remedy = "memory is too fragmented to make pages on demand: set " + poolDir + fileNr + " early after boot"
		}
	case errors.Is(err, unix.EFAULT):
		r.Cause = "the pages were promised, but a limit of the cgroup (hugetlb.2MB.max) or its NUMA nodes keep them back"
		r.Remedy = "raise hugetlb.2MB.max, or widen cpuset.mems"
	case errors.Is(err, unix.EHWPOISON):
		r.Cause = "a page has failed memory"
	default:
		r.Cause = "the kernel does not map 2 MB pages"
	}
	return r
}

// tryPages maps memory of the lower two steps and fills in what it got. The refusal is that of the step THP; an
// error means that there is not enough memory.
func tryPages(cfg Config, info *Info) (*mapping, *Refusal, error) {
	advice := unix.MADV_NOHUGEPAGE
	if cfg.Policy != Avoid {
		advice = unix.MADV_HUGEPAGE
	}
	size := cfg.MappedBytes()
	if err := checkMemory(size); err != nil {
		return nil, nil, err
	}
	m, err := newMapping(size, cfg.Shared, false)
	if err != nil {
		return nil, nil, pagesRefusal(err, size)
	}
	adviceErr := unix.Madvise(m.mem, advice) // EINVAL: a kernel without transparent hugepages
	if cfg.Policy != Avoid && adviceErr == nil && mayCollapse(cfg.Shared) {
		err = m.collapse()
	}
	if err == nil {
		err = populate(m.mem)
	}
	if err != nil {
		return nil, nil, errors.Join(pagesRefusal(err, size), m.close())
	}
	info.Kind, info.Size = Pages, size
	if cfg.Policy == Avoid {
		return m, nil, nil
	}
	info.Huge, _ = hugeMapped(m.address(), size)
	switch {
	case info.Huge == 0:
		r := thpRefusal(adviceErr, cfg.Shared)
		return m, &r, nil
	case info.Huge == size:
		info.PageSize = hugeSize
	}
	info.Kind = THP
	return m, nil, nil
}

// mayCollapse reports whether New may ask for transparent hugepages that the settings do not give by themselves. "never" for
// shared memory is the kernel's default and forbids nothing here; "deny" does.
func mayCollapse(shared bool) bool {
	return thpSetting(thpAnon) != "never" && !(shared && thpSetting(thpShmem) == "deny")
}

// collapse asks the kernel to build transparent hugepages now, whatever the settings say (madvise(2), MADV_COLLAPSE, Linux 6.1).
// The kernel skips a range of 2 MB without any page, and copies the pages of others. So collapse populates one page of each
// range first. A memfd of 64 MB then takes about 7 ms of CPU time, and 70 ms or more if all pages are populated first.
func (m *mapping) collapse() error {
	for at := 0; at < len(m.mem); at += hugeSize {
		if err := populate(m.mem[at : at+os.Getpagesize()]); err != nil {
			return err
		}
	}
	// The error is that of one range of many; only the count is relevant.
	_ = unix.Madvise(m.mem, unix.MADV_COLLAPSE)
	return nil
}

// checkMemory fails if there is too little memory, on the machine or below a limit of the control group; populating would
// invoke the OOM killer instead.
func checkMemory(size int) error {
	if free, ok := memAvailable(); ok && size > free {
		return Refusal{Step: Pages, Err: unix.ENOMEM,
			Cause:  fmt.Sprintf("%d MB needed, %d MB of memory available", size>>20, free>>20),
			Remedy: "ask for a smaller arena"}
	}
	if free, limit, ok := groupAvailable("/proc/self"); ok && size > free {
		return Refusal{Step: Pages, Err: unix.ENOMEM,
			Cause:  fmt.Sprintf("%d MB needed, %d MB left below the limit of the control group", size>>20, free>>20),
			Remedy: "ask for a smaller arena, or raise " + limit}
	}
	return nil
}

func pagesRefusal(err error, size int) Refusal {
	r := Refusal{Step: Pages, Err: err, Cause: fmt.Sprintf("no memory of %d KB", size>>10),
		Remedy: "ask for a smaller arena, or raise the limits of the process (ulimit -v) or cgroup"}
	if errors.Is(err, unix.EINVAL) {
		r.Cause, r.Remedy = "the kernel cannot populate a mapping (MADV_POPULATE_WRITE)", "use Linux 5.14 or newer"
	}
	return r
}

// thpRefusal explains why there are no transparent hugepages.
func thpRefusal(err error, shared bool) Refusal {
	file := thpAnon
	if shared {
		file = thpShmem
	}
	r := Refusal{Step: THP, Err: err}
	switch s := thpSetting(file); s {
	case "":
		r.Cause, r.Remedy = "the kernel has no transparent hugepages", "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE"
	case "never", "deny":
		r.Cause, r.Remedy = file+" says "+s, "echo advise > "+file
		if !shared {
			r.Remedy = "echo madvise > " + file
		}
	default:
		r.Cause = "no 2 MB of memory in one piece, or the process has them turned off (PR_SET_THP_DISABLE)"
		r.Remedy = "echo 1 > /proc/sys/vm/compact_memory"
	}
	return r
}
