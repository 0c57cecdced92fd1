package mvich_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/mvich"
	"viaxdp/xdpnic/xdpnictest"
)

// The model of matching. Of any program of sends and receives that can end, the receives of a rank and communicator,
// in the order in which they were posted, get each the first message of its source, in the order in which that sent
// them, that the receive takes and that no earlier receive got. Which source an AnySource receive gets is free.

// sending is a message of the program.
type sending struct {
	from, to, comm, tag int
	size                int
	sync                bool
}

// receiving is a receive of the program.
type receiving struct {
	comm, source, tag int
}

// program is what each rank does, in its order.
type program struct {
	sends    []sending     // all, in the order in which each rank begins its own
	receives [][]receiving // by rank
	seed     uint64
}

// ways in which the receives of a rank and communicator name messages. All of them use the same way, so that none
// takes a message that another needs.
const (
	exactly = iota
	fromAnybody
	withAnyTag
	anything
	allWays
)

func drawProgram(t *rapid.T, ranks, comms int) program {
	p := program{receives: make([][]receiving, ranks), seed: rapid.Uint64().Draw(t, "seed")}
	ways := rapid.SliceOfN(rapid.IntRange(0, allWays-1), ranks*comms, ranks*comms).Draw(t, "ways")
	for range rapid.IntRange(1, 60).Draw(t, "messages") {
		s := sending{
			from: rapid.IntRange(0, ranks-1).Draw(t, "from"), to: rapid.IntRange(0, ranks-1).Draw(t, "to"),
			comm: rapid.IntRange(0, comms-1).Draw(t, "comm"), tag: rapid.IntRange(0, 2).Draw(t, "tag"),
			size: rapid.SampledFrom([]int{0, 1, 30, 4000, 5000, 5001, 16384, 16385, 30000}).Draw(t, "size"),
			sync: rapid.Bool().Draw(t, "sync"),
		}
		p.sends = append(p.sends, s)
		r := receiving{s.comm, s.from, s.tag}
		switch ways[s.to*comms+s.comm] {
		case fromAnybody:
			r.source = mvich.AnySource
		case withAnyTag:
			r.tag = mvich.AnyTag
		case anything:
			r.source, r.tag = mvich.AnySource, mvich.AnyTag
		}
		p.receives[s.to] = append(p.receives[s.to], r)
	}
	rng := rand.New(rand.NewPCG(p.seed, 0))
	for _, list := range p.receives {
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return p
}

// result is what a receive got.
type result struct {
	status mvich.Status
	number int // of the message, by its content
}

// content is the content of a message of the program. It is unique among non-empty messages of the same length.
func content(number int, s sending) []byte {
	b := make([]byte, s.size)
	fill(b, number)
	return b
}

// execute runs one rank's part: it begins all sends and receives in mixed order, and waits for them in one of several
// ways.
func (p *program) execute(comms []*mvich.Comm) ([]result, error) {
	me := comms[0].Rank()
	rng := rand.New(rand.NewPCG(p.seed, uint64(me)+1))
	var mine []int
	for i, s := range p.sends {
		if s.from == me {
			mine = append(mine, i)
		}
	}
	receives := p.receives[me]
	buffers := make([][]byte, len(receives))
	requests := make([]*mvich.Request, len(receives), len(receives)+len(mine))
	for sent, got := 0, 0; sent < len(mine) || got < len(receives); {
		var err error
		if got == len(receives) || sent < len(mine) && rng.IntN(2) == 0 {
			s := p.sends[mine[sent]]
			begin := comms[s.comm].Isend
			if s.sync {
				begin = comms[s.comm].Issend
			}
			var r *mvich.Request
			r, err = begin(content(mine[sent], s), s.to, s.tag)
			requests = append(requests, r)
			sent++
		} else {
			r := receives[got]
			buffers[got] = make([]byte, 30000)
			requests[got], err = comms[r.comm].Irecv(buffers[got], r.source, r.tag)
			got++
		}
		if err != nil {
			return nil, err
		}
		if rng.IntN(4) == 0 {
			comms[0].Iprobe(mvich.AnySource, mvich.AnyTag)
		}
	}
	results := make([]result, len(receives))
	note := func(i int, s mvich.Status, err error) error {
		if err == nil && i < len(results) {
			results[i], err = p.identify(me, receives[i], s, buffers[i][:s.Bytes])
		}
		return err
	}
	for left := len(requests); left > 0; {
		if rng.IntN(2) == 0 {
			i, s, err := mvich.WaitAny(requests)
			if err := note(i, s, err); err != nil {
				return nil, err
			}
			left--
			continue
		}
		some, err := mvich.WaitSome(requests)
		if err != nil {
			return nil, err
		}
		for _, o := range some {
			if err := note(o.Index, o.Status, o.Err); err != nil {
				return nil, err
			}
		}
		left -= len(some)
	}
	return results, nil
}

// identify finds the message that a receive may have got, by its content. If the content is too short, any message
// with the same envelope will do.
func (p *program) identify(me int, r receiving, s mvich.Status, b []byte) (result, error) {
	for i, m := range p.sends {
		if m.to == me && m.from == s.Source && m.comm == r.comm && m.tag == s.Tag && m.size == s.Bytes && check(b, i) == nil {
			return result{s, i}, nil
		}
	}
	return result{}, fmt.Errorf("%+v got %+v, which no rank has sent", r, s)
}

// judge compares what the receives of a rank got with the model.
func (p *program) judge(me int, results []result) error {
	taken := make([]bool, len(p.sends))
	for i, r := range p.receives[me] {
		s := results[i].status
		first := -1
		for k, m := range p.sends {
			if !taken[k] && m.to == me && m.comm == r.comm && m.from == s.Source && (r.tag == m.tag || r.tag == mvich.AnyTag) {
				first = k
				break
			}
		}
		if first < 0 {
			return fmt.Errorf("rank %d, receive %d: %+v got a message more than was sent: %+v", me, i, r, s)
		}
		m := p.sends[first]
		got := p.sends[results[i].number]
		if got.size != m.size || got.tag != m.tag || m.size > 0 && results[i].number != first {
			return fmt.Errorf("rank %d, receive %d: %+v got message %d %+v, and %d %+v comes before it",
				me, i, r, results[i].number, got, first, m)
		}
		taken[first] = true
	}
	return nil
}

// Random programs, by every protocol, with and without losses.
func TestMatchingModel(t *testing.T) {
	const ranks, comms = 3, 2
	for name, c := range map[string]jobConfig{
		"auto": {}, "lossy": {faults: xdpnictest.Faults{Seed: 3, Loss: 0.02, Dup: 0.02, Reorder: 0.02}},
		"r3":           {options: with(mvich.WithProtocol(mvich.R3))},
		"rput":         {options: with(mvich.WithProtocol(mvich.RPUT))},
		"few credits":  {options: with(mvich.WithCredits(4))},
		"small memory": {options: with(mvich.WithUnexpected(5000), mvich.WithRegistered(40000))},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, ranks, c)
			rapid.Check(t, func(rt *rapid.T) {
				p := drawProgram(rt, ranks, comms)
				results := make([][]result, ranks)
				// Separate communicators, so that a failed program leaves nothing for the next one.
				each(t, ranks, func(rank int) (err error) {
					set := make([]*mvich.Comm, comms)
					for i := range set {
						if set[i], err = j.worlds[rank].Comm().Dup(); err != nil {
							return err
						}
					}
					results[rank], err = p.execute(set)
					return err
				})
				for rank := range ranks {
					if err := p.judge(rank, results[rank]); err != nil {
						rt.Fatal(err)
					}
				}
			})
			credits := mvich.DefaultCredits
			if name == "few credits" {
				credits = 4
			}
			j.spotless(t, credits)
		})
	}
}
