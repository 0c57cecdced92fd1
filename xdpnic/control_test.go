package xdpnic

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

func TestHints(t *testing.T) {
	for _, tc := range []struct {
		op   string
		err  error
		want string
	}{
		{"socket", unix.EPERM, "CAP_NET_RAW"},
		{"socket", unix.EAFNOSUPPORT, "CONFIG_XDP_SOCKETS"},
		{"SO_PREFER_BUSY_POLL", unix.EPERM, "cap_net_admin"},
		{"umem", unix.ENOBUFS, "RLIMIT_MEMLOCK"},
		{"umem", unix.EINVAL, "page-aligned"},
		{"umem", unix.ENOMEM, "fewer chunks"},
		{"bind", unix.EBUSY, "another queue"},
		{"bind", unix.EOPNOTSUPP, "native or generic"},
		{"bind", unix.EINVAL, "queue number"},
		{"bind", unix.ENODEV, "network namespace"},
		{"bind", fmt.Errorf("wrapped: %w", unix.ENODEV), "network namespace"},
		{"kick", unix.ENETDOWN, "set it up"},
		{"kick", unix.ENXIO, "open it again"},
	} {
		e := &OpError{Op: tc.op, Ifindex: 3, Queue: 1, Err: tc.err, Detail: "detail"}
		if s := e.Error(); !strings.Contains(s, tc.want) || !strings.Contains(s, tc.op+", interface 3 queue 1") ||
			!strings.Contains(s, "detail") || !strings.Contains(s, tc.err.Error()) {
			t.Errorf("%s", s)
		}
		nstest.ErrorIf(t, !errors.Is(e, tc.err), "%v is not %v", e, tc.err)
	}
	nstest.Equal(t, "text", (&OpError{Op: "umem", Err: errors.New("x")}).Error(), "xdpnic: umem, interface 0 queue 0: x")
	nstest.Equal(t, "hint", hint("mtu", unix.EBADF), "")
}

// Without privilege, and with a small RLIMIT_MEMLOCK, the error names the remedy.
func TestMissingPrivilege(t *testing.T) {
	na, _ := nstest.Pair(t, nstest.Options{})
	// The thread of Do ends with it, and the capabilities that it gave up.
	without := func(capability uint) error {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			return err
		}
		data[capability/32].Effective &^= 1 << (capability % 32)
		return unix.Capset(&hdr, &data[0])
	}
	open := func(capability uint) error {
		return na.Do(func() error {
			if err := without(capability); err != nil {
				return err
			}
			q, err := Open(Config{Ifindex: na.Index})
			if err == nil {
				q.Close()
			}
			return err
		})
	}
	if err := open(unix.CAP_NET_RAW); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Errorf("without CAP_NET_RAW: %v", err)
	}
	var old unix.Rlimit
	nstest.Must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	nstest.Must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 1 << 16, Max: old.Max}))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
	err := open(unix.CAP_IPC_LOCK)
	nstest.ErrorIf(t, !errors.Is(err, unix.ENOBUFS) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK"),
		"memory lock limit: %v", err)
}

// Whichever call meets it first, an interface that does not exist is ENODEV, with its index and the remedy.
func TestNoSuchInterface(t *testing.T) {
	for _, index := range []int{1 << 30, 0} { // 0: the caller forgot it
		c := Config{Ifindex: index}
		for call, err := range map[string]error{
			"WithDefaults":                nstest.Err(c.WithDefaults()),
			"Open":                        nstest.Err(Open(c)),
			"Open with the size of chunk": nstest.Err(Open(Config{Ifindex: index, ChunkSize: 2048, RxChunks: 4, TxChunks: 4})),
			"Running":                     nstest.Err(Running(index)),
		} {
			want := fmt.Sprintf("interface %d queue 0: no such device (there is no such interface in this network namespace)", index)
			nstest.ErrorIf(t, !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), want), "%s: %v, want %q", call, err, want)
		}
	}
}

func TestConfig(t *testing.T) {
	page := func(n int) []byte {
		mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		nstest.Must(t, err)
		t.Cleanup(func() { unix.Munmap(mem[:cap(mem)]) })
		return mem
	}
	const mib = 1 << 20
	for _, tc := range []struct {
		c    Config
		want string // "" means good
	}{
		{Config{ChunkSize: 2048}, ""},
		{Config{ChunkSize: 3000, Unaligned: true}, ""},
		{Config{ChunkSize: 2048, Memory: page(2 * mib)}, ""},
		{Config{ChunkSize: 2048, RxChunks: 100, TxChunks: 3}, ""},
		{Config{ChunkSize: 1024}, "chunk size 1024"},
		{Config{ChunkSize: 8192}, "chunk size 8192"},
		{Config{ChunkSize: 3000}, "power of two unless"},
		{Config{ChunkSize: 2048, Headroom: 1800}, "headroom 1800"},
		{Config{ChunkSize: 2048, RxChunks: -1}, "-1 RX"},
		{Config{ChunkSize: 2048, Rings: Rings{TX: 100}}, "TX ring of 100"},
		{Config{ChunkSize: 2048, Rings: Rings{Fill: 256}}, "does not hold 512 RX chunks"},
		{Config{ChunkSize: 2048, Rings: Rings{Completion: 8}}, "smaller than the TX ring"},
		{Config{ChunkSize: 2048, PoolOffset: 4096}, "without memory"},
		{Config{ChunkSize: 2048, PoolOffset: 100}, "pool offset 100"},
		{Config{ChunkSize: 2048, Memory: page(mib)}, "does not fit"},
		{Config{ChunkSize: 2048, PoolOffset: 4096, Memory: page(2 * mib)}, "does not fit"},
		{Config{ChunkSize: 2048, Memory: page(3 * mib)[1 : 1+2*mib]}, "start on a page"},
		{Config{ChunkSize: 2048, Memory: page(3 * mib)[: 2*mib+1 : 2*mib+1]}, "multiple of 4096"},
		{Config{Ifindex: 1 << 30}, "mtu"},
	} {
		c, err := tc.c.WithDefaults()
		var op *OpError
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%+v: %v", tc.c, err)
		case tc.want == "" && (c.Rings.Fill < c.RxChunks || c.Rings.Completion < c.TxChunks ||
			c.PoolBytes()%4096 != 0 || c.PoolBytes() < (c.RxChunks+c.TxChunks)*c.ChunkSize):
			t.Errorf("defaults: %+v", c)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !errors.As(err, &op)):
			t.Errorf("%+v: %v, want %q", tc.c, err, tc.want)
		}
	}
}

// The default chunk size follows the MTU.
func TestChunkSizeFromMTU(t *testing.T) {
	for _, tc := range []struct{ mtu, headroom, want int }{
		{1500, 0, 2048}, {1774, 0, 2048}, {1775, 0, 4096}, {1500, 300, 4096}, {9000, 0, 4096},
	} {
		na, _ := nstest.Pair(t, nstest.Options{MTU: tc.mtu})
		na.Do(func() error {
			c, err := Config{Ifindex: na.Index, Headroom: tc.headroom}.WithDefaults()
			nstest.ErrorIf(t, err != nil || c.ChunkSize != tc.want,
				"MTU %d, headroom %d: chunk %d, %v", tc.mtu, tc.headroom, c.ChunkSize, err)
			return nil
		})
	}
}

// Kernels before 6.3 say nothing about a driver. It may have zero-copy, in which chunks of 2048 bytes are too small on some NICs.
func TestZeroCopyPossible(t *testing.T) {
	for _, tc := range []struct {
		bus  string
		f    Features
		err  error
		want bool
	}{
		{"pci", Features{}, unix.ENOENT, true}, {"", Features{}, unix.ENOENT, false},
		{"pci", Features{}, nil, false}, {"pci", Features{XDP: FeatureZeroCopy}, nil, true},
	} {
		got := zeroCopyPossible(&netlink.LinkAttrs{ParentDevBus: tc.bus}, func(int) (Features, error) { return tc.f, tc.err })
		nstest.Equal(t, fmt.Sprintf("bus %q, %v, %v", tc.bus, tc.f.XDP, tc.err), got, tc.want)
	}
}

func TestLadder(t *testing.T) {
	for _, tc := range []struct {
		want    Mode
		require bool
		steps   []Mode
		binds   []Mode
	}{
		{ModeAuto, false, []Mode{ModeZeroCopy, ModeNative, ModeGeneric}, []Mode{ModeZeroCopy, ModeNative}},
		{ModeZeroCopy, false, []Mode{ModeZeroCopy, ModeNative, ModeGeneric}, []Mode{ModeZeroCopy, ModeNative}},
		{ModeZeroCopy, true, []Mode{ModeZeroCopy}, []Mode{ModeZeroCopy}},
		{ModeNative, false, []Mode{ModeNative, ModeGeneric}, []Mode{ModeNative}},
		{ModeNative, true, []Mode{ModeNative}, []Mode{ModeNative}},
		{ModeGeneric, false, []Mode{ModeGeneric}, []Mode{ModeGeneric}},
		{9, false, nil, nil},
	} {
		nstest.Same(t, fmt.Sprintf("Ladder(%v, %v)", tc.want, tc.require), Ladder(tc.want, tc.require), tc.steps)
		nstest.Same(t, fmt.Sprintf("bindSteps(%v, %v)", tc.want, tc.require), bindSteps(tc.want, tc.require), tc.binds)
	}
	for m := ModeAuto; m <= ModeGeneric; m++ {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("ParseMode(%q) = %v, %v", m, got, err)
		}
	}
	nstest.ErrSays(t, "unknown mode", nstest.Err(ParseMode("fast")), "zero-copy")
}

// Climb stops at the first mode that works and keeps every reason.
func TestClimb(t *testing.T) {
	refuse := func(refused ...Mode) func(Mode) error {
		return func(m Mode) error {
			if slices.Contains(refused, m) {
				return fmt.Errorf("no %v here", m)
			}
			return nil
		}
	}
	m, attempts, err := Climb(ModeAuto, false, refuse(ModeZeroCopy, ModeNative))
	if err != nil || m != ModeGeneric || fmt.Sprint(attempts) !=
		"[zero-copy: no zero-copy here native: no native here generic: reached]" {
		t.Errorf("%v %v %v", m, attempts, err)
	}
	_, attempts, err = Climb(ModeZeroCopy, true, refuse(ModeZeroCopy))
	nstest.ErrorIf(t, err == nil || len(attempts) != 1 || !strings.Contains(err.Error(), "no zero-copy here"),
		"%v %v", attempts, err)
	if _, _, err = Climb(77, false, refuse()); err == nil {
		t.Error("unknown mode")
	}
}

// Compares what the driver reports about itself with what it does.
func TestFeatures(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	nstest.Must(t, na.Do(func() error {
		f, err := QueryFeatures(na.Index)
		if err != nil {
			return err
		}
		if !f.XDP.Has(FeatureBasic|FeatureRedirect|FeatureRxSG) || f.XDP.Has(FeatureZeroCopy) || f.ZCMaxSegs > 1 || f.XSK != 0 {
			t.Errorf("veth: %+v (%v)", f, f.XDP)
		}
		_, err = Open(Config{Ifindex: na.Index, Mode: ModeZeroCopy, Require: true})
		nstest.ErrorIf(t, !errors.Is(err, unix.EOPNOTSUPP), "zero-copy required on veth: %v", err)
		f, err = QueryFeatures(1)
		nstest.ErrorIf(t, err != nil || f.XDP != 0 || f.XDP.String() != "none", "loopback: %+v, %v", f, err)
		_, err = QueryFeatures(1 << 30)
		nstest.ErrorIf(t, !errors.Is(err, unix.ENODEV), "no such interface: %v", err)
		return nil
	}))
	// veth takes redirected frames only while its peer receives in native mode.
	openEnd(t, nb, pairOptions{})
	na.Do(func() error {
		f, err := QueryFeatures(na.Index)
		nstest.ErrorIf(t, err != nil || !f.XDP.Has(FeatureNdoXmit),
			"veth whose peer has a native program: %v, %v", f.XDP, err)
		return nil
	})
	nstest.Equal(t, "text", (FeatureBasic | FeatureZeroCopy | 1<<20).String(), "basic,xsk-zerocopy,0x100000")
}

// A zero-copy bind that would succeed and not work is refused with the reason: beside a program in generic
// mode, with preferred busy polling, with chunks that cross pages, and with a short RX ring for frames of
// several chunks. veth has no zero-copy at all. That is detected later, and so distinguishes the two.
func TestZeroCopyRefused(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	for _, tc := range []struct {
		name, want string
		generic    bool
		cfg        Config
	}{
		{"generic program", "attached in generic mode", true, Config{}},
		{"native program", "the driver has no zero-copy", false, Config{}},
		{"busy polling", "stalls sending", false, Config{BusyPoll: BusyPoll{Prefer: true}}},
		{"busy polling, trusted", "the driver has no zero-copy", false, Config{BusyPoll: BusyPoll{Prefer: true, Trust: true}}},
		{"chunks across pages", "cross pages", false, Config{Unaligned: true, ChunkSize: 3000}},
		{"unaligned chunks within pages", "the driver has no zero-copy", false, Config{Unaligned: true, ChunkSize: 2048}},
		{"chained frames and a short RX ring", "in the middle of a frame", false, Config{MultiBuffer: true, RxChunks: 64, Rings: Rings{RX: 32}}},
		{"chained frames", "the driver has no zero-copy", false, Config{MultiBuffer: true, RxChunks: 64}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nstest.Check(t, ns.Do(func() error {
				r, err := attachRedirect(ns.Index, tc.generic, false)
				if err != nil {
					return err
				}
				defer r.close()
				cfg := tc.cfg
				cfg.Ifindex, cfg.Mode, cfg.Require, cfg.BusyTimeout = ns.Index, ModeZeroCopy, true, waitLimit
				q, err := Open(cfg)
				if err == nil {
					q.Close()
					return errors.New("zero-copy on a veth")
				}
				if tc.want == "the driver has no zero-copy" && strings.Contains(err.Error(), ";") ||
					!strings.Contains(err.Error(), tc.want) || !errors.Is(err, unix.EOPNOTSUPP) {
					return fmt.Errorf("error is %q, want %q", err, tc.want)
				}
				// The ladder goes on, with the reason.
				cfg.Require = false
				q, err = Open(cfg)
				if err != nil {
					return err
				}
				info := q.Info()
				if info.Mode != ModeNative || !strings.Contains(info.Attempts[0].Err.Error(), tc.want) {
					err = fmt.Errorf("%+v", info.Attempts)
				}
				return errors.Join(err, q.Close())
			}))
		})
	}
}

// A process without a descriptor cannot ask how the program is attached, and so gets no zero-copy queue: it would receive
// nothing if the program is in generic mode. Nor does it get a slower one for a reason that passes. That there is no such
// interface is left to bind(2).
func TestZeroCopyWithoutDescriptors(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	nstest.Must(t, ns.Do(func() (err error) {
		nstest.WithDescriptors(t, 0, func() { err = newQueue(Config{Ifindex: ns.Index}).refuseZeroCopy() })
		nstest.WantErr(t, "without descriptors", err, unix.EMFILE)
		nstest.WantErr(t, "no such interface", newQueue(Config{Ifindex: 1 << 30}).refuseZeroCopy(), nil)
		var q *Queue
		nstest.WithDescriptors(t, 2, func() { q, err = Open(Config{Ifindex: ns.Index}) }) // the socket, and that of Wake
		nstest.WantErr(t, "Open", err, unix.EMFILE)
		nstest.WithDescriptors(t, 2, func() { q, err = Open(Config{Ifindex: ns.Index, Mode: ModeGeneric}) }) // nor can it ask how frames are sent
		nstest.WantErr(t, "Open in a copying mode", err, unix.EMFILE)
		nstest.WithDescriptors(t, 3, func() { q, err = Open(Config{Ifindex: ns.Index}) })
		if err != nil {
			return err
		}
		return q.Close()
	}))
}

// Rings.Bytes is what the kernel has: it maps so much of each ring, and no page more. Kernels before
// 6.3 have a power of two of pages (xskq_create).
func TestRingBytes(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	for _, n := range []int{64, 512, 4096} {
		q, err := openIn(an, Config{ChunkSize: 2048, RxChunks: n, TxChunks: n, Mode: ModeGeneric, BusyTimeout: waitLimit})
		nstest.Must(t, err)
		sum := 0
		for pgoff, entry := range map[int64]int{
			unix.XDP_UMEM_PGOFF_FILL_RING: 8, unix.XDP_UMEM_PGOFF_COMPLETION_RING: 8, unix.XDP_PGOFF_RX_RING: 16, unix.XDP_PGOFF_TX_RING: 16,
		} {
			pages := n*entry/pageSize + 1
			for ; ; pages++ {
				mem, err := unix.Mmap(q.FD(), pgoff, pages*pageSize, unix.PROT_READ, unix.MAP_SHARED)
				if err != nil {
					break
				}
				nstest.Must(t, unix.Munmap(mem))
			}
			sum += (pages - 1) * pageSize
		}
		want := q.Info().Rings.Bytes()
		old := 0
		for _, entry := range []int{8, 8, 16, 16} {
			old += powerOfTwo((n*entry + ringHeader + pageSize - 1) &^ (pageSize - 1))
		}
		nstest.ErrorIf(t, sum != want && sum != old, "%d entries: the kernel has %d bytes, want %d", n, sum, want)
		nstest.Check(t, q.Close())
	}
}
