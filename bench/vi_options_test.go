package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/inspect"
	"viaxdp/vipl"
)

func percent(n int) *int { return &n }

// A VI carries every byte with any options.
func TestVIOptions(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	for _, c := range []struct {
		name string
		vi   VIOptions
	}{
		{"vi-reliable-delivery", VIOptions{CQ: true}},
		{"vi-reliable-delivery-wait", VIOptions{CQ: true}},
		{"vi-rdma-write", VIOptions{CQ: true, Segments: 3}},
		{"vi-rdma-read", VIOptions{CQ: true, Segments: 252}},
		{"vi-reliable-delivery", VIOptions{Notify: true}},
		{"vi-reliable-delivery", VIOptions{VIs: 5, MaxTransfer: MaxMessage}},
		{"vi-rdma-write", VIOptions{VIs: 2, Register: true, NoChecksum: true, List: 3}},
		{"vi-reliable-delivery", VIOptions{Segments: 252}},
		{"vi-reliable-delivery", VIOptions{Reuse: percent(0)}},
		{"vi-unreliable-wait", VIOptions{Reuse: percent(50), Register: true}},
		{"vi-reliable-delivery", VIOptions{Engine: true}},
		{"vi-reliable-reception", VIOptions{Engine: true, OneByOne: true}},
		{"vi-reliable-reception-wait", VIOptions{OneByOne: true}},
		{"vi-reliable-delivery", VIOptions{NoPacking: true, NoChecksum: true, NoPollPause: true}},
		{"vi-reliable-delivery", VIOptions{List: 1}},
		{"vi-reliable-reception-wait", VIOptions{List: 5, Segments: 3}},
		{"vi-reliable-delivery", VIOptions{Sealed: true}},
		{"vi-unreliable", VIOptions{Sealed: true}},
		{"vi-rdma-read", VIOptions{Sealed: true}},
	} {
		t.Run(fmt.Sprintf("%s %+v", c.name, c.vi), func(t *testing.T) {
			client, server := pair(t, 1500, false, "generic")
			client.params.VI, server.params.VI = c.vi, c.vi
			nstest.Must(t, connected(c.name, client, server, exchange([]int{1, 63, 1473, 1 << 16}, 7)))
		})
	}
	nstest.Equal(t, "GOMAXPROCS", runtime.GOMAXPROCS(0), procs)
}

// Frames are longer than a chunk where the MTU is, unless that is left out; the
// bytes are the same. The facts for the report say so.
func TestMultiBuffer(t *testing.T) {
	for _, c := range []struct {
		name string
		none bool
		want int // bytes of a frame
	}{
		{"raw-afxdp", false, 9014}, {"raw-afxdp-copy", true, 3840},
		{"vi-reliable-delivery", false, 9014}, {"vi-unreliable", true, 3840}, {"vi-rdma-write", true, 3840},
	} {
		client, server := pair(t, 9000, false, "generic")
		client.params.VI.NoMultiBuffer, server.params.VI.NoMultiBuffer = c.none, c.none
		err := connected(c.name, client, server, func(client bool, e endpoint) error {
			f := e.Hello().Facts
			if f.Interface != "via0" || f.Mode != "generic" || f.MTU != 9000 || f.FrameBytes != c.want || f.Memory == "" {
				return fmt.Errorf("%+v, want frames of %d bytes", f, c.want)
			}
			return exchange([]int{64, 1 << 16}, 5)(client, e)
		})
		nstest.WantErr(t, fmt.Sprintf("%s, left out %v", c.name, c.none), err, nil)
	}
}

// The descriptors posted match the options.
func TestVIOptionsHold(t *testing.T) {
	client, server := pair(t, 1500, false, "generic")
	both := func(o VIOptions, look func(*vi) error) error {
		client.params.VI, server.params.VI = o, o
		return connected("vi-reliable-delivery", client, server, func(client bool, e endpoint) error {
			r := Round{ID: 1, Bytes: 1000, Messages: 20}
			if !client {
				e.Echo(r)
				return nil
			}
			e.Ping(r, make([]int64, r.Messages))
			return look(e.(*vi))
		})
	}
	places := func(r *ring, from uint64) map[uint64]int {
		at := map[uint64]int{}
		for _, d := range r.descs {
			if d.SegCount > 0 {
				at[d.Segment(0).Data-from]++
			}
		}
		return at
	}
	for reuse, want := range map[int]int{0: 20, 25: 16, 50: 11, 100: 1} {
		if err := both(VIOptions{Reuse: percent(reuse)}, func(v *vi) error {
			for what, at := range map[string]map[uint64]int{
				"sent from": places(&v.sends, v.out.Addr()), "received into": places(&v.recvs, v.in.Addr()),
			} {
				if len(at) != want {
					return fmt.Errorf("20 messages %s %d places, want %d", what, len(at), want)
				}
				if first := at[0]; reuse > 0 && first != 20*reuse/100 {
					return fmt.Errorf("%d of 20 messages %s the first place", first, what)
				}
			}
			return nil
		}); err != nil {
			t.Errorf("reuse of %d %%: %v", reuse, err)
		}
	}
	if err := both(VIOptions{Segments: 7}, func(v *vi) error {
		for _, d := range []*ring{&v.sends, &v.recvs} {
			sum, segments := 0, 0
			for _, d := range d.descs {
				if d.SegCount == 0 {
					continue
				}
				if d.SegCount != 7 {
					return fmt.Errorf("%d segments", d.SegCount)
				}
				for i := range 7 {
					sum += int(d.Segment(i).Length)
				}
				segments += 7
			}
			if sum != 20*1000 || segments != 20*7 {
				return fmt.Errorf("%d bytes in %d segments", sum, segments)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := both(VIOptions{VIs: 9, MaxTransfer: 1 << 18}, func(v *vi) error {
		st, err := v.idle[7].Query()
		if err != nil {
			return err
		}
		if len(v.idle) != 8 || st.State != vipl.Connected || st.Attributes.MaxTransferSize != 1<<18 {
			return fmt.Errorf("%d idle VIs, the last one %v with MaxTransferSize %d", len(v.idle), st.State, st.Attributes.MaxTransferSize)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A transport of the kernel runs while a program is attached to its interface.
func TestBeside(t *testing.T) {
	client, server := pair(t, 1500, false, "generic")
	client.params.Beside, server.params.Beside = true, true
	for _, name := range []string{"tcp-spin", "udp-block"} {
		err := connected(name, client, server, func(isClient bool, e endpoint) error {
			info, err := inspect.Look(client.params.Interface, false)
			if err != nil {
				return err
			}
			if info.Program == "" {
				return fmt.Errorf("no program on %s: %+v", info.Name, info)
			}
			return exchange([]int{64, 5000}, 5)(isClient, e)
		})
		nstest.WantErr(t, name, err, nil)
	}
	err := client.do(func() error {
		info, err := inspect.Look(client.params.Interface, false)
		if err == nil && info.Program != "" {
			err = fmt.Errorf("left behind: %s", info.Program)
		}
		return err
	})
	nstest.Check(t, err)
}

// Impossible options are refused with an error that names them, before anything is
// opened.
func TestVIOptionsRefused(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want string
	}{
		{Row{Name: "tcp-spin", VI: VIOptions{CQ: true}}, "no such options"},
		{Row{Name: "raw-afxdp", VI: VIOptions{VIs: 2, NoMultiBuffer: true}}, "no such options"},
		{Row{Name: "udp-spin", VI: VIOptions{NoMultiBuffer: true}}, "no such options"},
		{Row{Name: "raw-afxdp", Beside: true}, "beside"},
		{Row{Name: "vi-unreliable", VI: VIOptions{VIs: MaxVIs + 1}}, "VIs"},
		{Row{Name: "vi-unreliable", VI: VIOptions{VIs: -1}}, "VIs"},
		{Row{Name: "vi-unreliable", VI: VIOptions{Segments: 253}}, "segments"},
		{Row{Name: "vi-unreliable", VI: VIOptions{Reuse: percent(101)}}, "reuse"},
		{Row{Name: "vi-unreliable", VI: VIOptions{List: 17}}, "lists"},
		{Row{Name: "vi-unreliable", VI: VIOptions{MaxTransfer: MaxMessage + 1}}, "MaxTransferSize"},
		{Row{Name: "vi-unreliable", VI: VIOptions{CQ: true, Notify: true}}, "one way"},
		{Row{Name: "vi-unreliable-wait", VI: VIOptions{Notify: true}}, "waits"},
		{Row{Name: "vi-rdma-write", VI: VIOptions{Engine: true}}, "RDMA"},
		{Row{Name: "vi-rdma-read", VI: VIOptions{Reuse: percent(1)}}, "RDMA"},
	} {
		plan := Plan{Rows: []Row{c.row}, Sizes: []int{1}, Duration: 1, Latency: true}
		nstest.ErrSays(t, fmt.Sprintf("%+v", c.row), plan.Validate(), c.want)
		params := Params{VI: c.row.VI, Beside: c.row.Beside}
		nstest.ErrSays(t, fmt.Sprintf("open %+v", c.row), nstest.Err(openEndpoint(t.Context(), c.row.Name, params)), c.want)
	}
	client, _ := pair(t, 1500, false, "generic")
	client.params.VI.MaxTransfer = 64
	err := client.do(func() error { return nstest.Err(openEndpoint(client.ctx, "vi-unreliable", client.params)) })
	nstest.ErrSays(t, "messages longer than a transfer", err, "MaxTransferSize 64")
}

// A bed serves one plan after the other: rows with options beside plain ones,
// under their labels.
func TestBed(t *testing.T) {
	nstest.Require(t)
	before, token := tracesNow(t), tokenOf(t)
	cfg := demoConfig(token, nil)
	bed, err := StartBed(t.Context(), BedConfig{
		MTU: 3000, Mode: cfg.Mode, WorkerArgs: cfg.WorkerArgs, AgentArgs: []string{asAgent, token}, Stderr: os.Stderr,
	})
	nstest.Must(t, err)
	plan := cfg.Plan
	plan.Sizes = []int{64}
	workers := processes(token)
	for _, rows := range [][]Row{
		{{Name: "vi-reliable-delivery"}, {Label: "by CQ", Name: "vi-reliable-delivery", VI: VIOptions{CQ: true}, SmallPages: true}},
		{{Label: "TCP beside", Name: "tcp-spin", Beside: true}},
		{{Label: "through the agent", Name: "vi-reliable-delivery", VI: VIOptions{Agent: true}}, {Name: "vi-reliable-delivery"}},
	} {
		plan.Rows = rows
		r, err := bed.Run(t.Context(), plan)
		nstest.Must(t, err)
		for _, row := range rows {
			if l := r.LatencyOf(row.label(), 64); l == nil || l.P50 <= 0 {
				t.Errorf("%s: %+v", row.label(), l)
			}
		}
		nstest.Equal(t, "MTU", r.Conditions.MTU, 3000)
		if now := processes(token); !slices.Equal(now, workers) || bed.client.over.Agent+bed.server.over.Agent != "" {
			t.Errorf("processes %v, %v before: agents are there after what needed them", now, workers)
		}
	}
	nstest.Check(t, bed.Close())
	nothingLeft(t, before, token)
}

// A bed without agents, or with agents that do not start, reports that.
func TestBedWithoutAgents(t *testing.T) {
	nstest.Require(t)
	before, token := tracesNow(t), tokenOf(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "the bed has none"},
		{[]string{asAgent, token, "fail"}, "agent of the client"},
	} {
		cfg := demoConfig(token, nil)
		bed, err := StartBed(t.Context(), BedConfig{Mode: cfg.Mode, WorkerArgs: cfg.WorkerArgs, AgentArgs: c.args, Stderr: os.Stderr})
		nstest.Must(t, err)
		cfg.Plan.Rows = []Row{{Name: "vi-reliable-delivery", VI: VIOptions{Agent: true}}}
		for range 2 { // the second time, too
			nstest.ErrSays(t, fmt.Sprintf("agents by %q", c.args), nstest.Err(bed.Run(t.Context(), cfg.Plan)), c.want)
		}
		nstest.Check(t, bed.Close())
	}
	nothingLeft(t, before, token)
}
