package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"viaxdp/internal/agent/kagent"
)

// agentMetrics are the agent's metrics: its status at the time of asking.
type agentMetrics struct {
	status func() kagent.Status
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("viaxdp_"+name, help, labels, nil)
}

var (
	descStart   = desc("agent_start_time_seconds", "When the agent began, in seconds since 1970.")
	descEvents  = desc("agent_events_total", "What the agent has done: connections accepted and refused, requests, failures, deaths of programs.", "event")
	descFrames  = desc("demux_frames_total", "Frames on the UDP port by what the demux program did with them. All but redirected and control were dropped.", "interface", "cause")
	descConnect = desc("connect_dropped_total", "Messages of connection management that came to nothing.", "interface", "cause")
	descVIs     = desc("vis", "VI numbers handed out.", "interface")
	descMaxVIs  = desc("vis_max", "VI numbers that there are.", "interface")
	descQueues  = desc("queues", "Queues that a program can have.", "interface")
	descLeased  = desc("queues_leased", "Queues that programs have.", "interface")
	descSharers = desc("queue_processes", "Programs that have a queue, or share one.", "interface")
	descQueueVI = desc("queue_vis", "VIs on a queue by state.", "interface", "queue", "uid", "comm", "state")
	descPinned  = desc("queue_pinned_bytes", "Registered memory of a queue.", "interface", "queue", "uid", "comm")
	descUser    = desc("user_usage", "What a user has of the agent: connections, processes with a NIC handle, queues, VIs, bytes of registered memory, rings and shared-memory links.", "uid", "resource")
	descLimit   = desc("user_limit", "What a user may have; no sample where there is no limit.", "uid", "resource")
)

// Describe is prometheus.Collector's.
func (m *agentMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descStart, descEvents, descFrames, descConnect, descVIs, descMaxVIs, descQueues, descLeased, descSharers, descQueueVI, descPinned, descUser, descLimit,
	} {
		ch <- d
	}
}

// samples are what Collect sends. Those of the same labels count together: an interface
// that is gone may have programs beside the new one of its name.
type samples map[sampleKey]*sample

type sampleKey struct {
	desc   *prometheus.Desc
	labels string
}

type sample struct {
	kind   prometheus.ValueType
	value  float64
	labels []string
}

func (s samples) add(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) {
	for i, l := range labels { // an interface's name may be any bytes
		labels[i] = strings.ToValidUTF8(l, "?")
	}
	key := sampleKey{d, strings.Join(labels, "\x00")}
	if s[key] == nil {
		s[key] = &sample{kind: kind, labels: labels}
	}
	s[key].value += v
}

// Collect is prometheus.Collector's.
func (m *agentMetrics) Collect(ch chan<- prometheus.Metric) {
	st := m.status()
	all := make(samples)
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		all.add(d, prometheus.GaugeValue, float64(v), labels)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		all.add(d, prometheus.CounterValue, float64(v), labels)
	}
	gauge(descStart, int(st.Since.Unix()))
	c := st.Counts
	for name, v := range map[string]uint64{
		"accepted": c.Accepted, "refused": c.Refused, "invalid": c.Invalid, "requests": c.Requests,
		"failed": c.Failed, "quota": c.Quota, "deaths": c.Deaths,
	} {
		counter(descEvents, v, name)
	}
	for _, n := range st.NICs {
		n.Counters.Each(func(cause string, v uint64) { counter(descFrames, v, n.Interface, cause) })
		for cause, v := range map[string]uint64{
			"malformed": n.Connects.Malformed, "no_match": n.Connects.NoMatch,
			"refused": n.Connects.Refused, "forged": n.Connects.Forged, "overrun": n.Connects.Overrun,
			"retries": n.Connects.Retries,
		} {
			counter(descConnect, v, n.Interface, cause)
		}
		gauge(descVIs, n.VIs, n.Interface)
		gauge(descMaxVIs, n.MaxVIs, n.Interface)
		gauge(descQueues, n.Queues, n.Interface)
		leased := make(map[int]bool) // processes may share one
		for _, l := range n.Leases {
			leased[l.Queue] = true
			for _, queue := range l.ExtraQueues {
				leased[queue] = true
			}
		}
		gauge(descLeased, len(leased), n.Interface)
		gauge(descSharers, len(n.Leases), n.Interface)
		for _, l := range n.Leases {
			labels := []string{n.Interface, strconv.Itoa(l.Queue), strconv.FormatUint(uint64(l.Holder.UID), 10), l.Holder.Comm}
			states := map[string]int{kagent.VICreated: 0, kagent.VIConnected: 0}
			for _, v := range l.VIs {
				states[v.State]++
			}
			for state, count := range states {
				gauge(descQueueVI, count, append(slices.Clip(labels), state)...)
			}
			gauge(descPinned, l.PinnedBytes, labels...)
		}
	}
	for _, u := range st.Users {
		uid := strconv.FormatUint(uint64(u.UID), 10)
		for _, r := range []struct {
			name      string
			has, most int
		}{
			{"connections", u.Sessions, u.MaxSessions}, {"processes", u.Processes, u.MaxProcs}, {"queues", u.Queues, u.MaxQueues},
			{"vis", u.VIs, u.MaxVIs}, {"pinned_bytes", u.PinnedBytes, u.MaxPinned},
		} {
			gauge(descUser, r.has, uid, r.name)
			if r.most > 0 {
				gauge(descLimit, r.most, uid, r.name)
			}
		}
	}
	for key, v := range all {
		ch <- prometheus.MustNewConstMetric(key.desc, v.kind, v.value, v.labels...)
	}
}
