package torture

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// Flood is what a hostile soak has counted. Forgers on the same machine take CPU time from others, which a flood from
// another machine would not. So messages are also counted beside forgers of the same priority whose frames go
// nowhere.
type Flood struct {
	Forged uint64        // frames, in all
	Time   time.Duration // in which they were sent
	Rate   float64       // frames/s

	Calm       Passed  // without forgers
	Spared     Passed  // beside forgers whose frames go nowhere
	Flooded    Passed  // and beside forgers of the same priority
	Beside     uint64  // forged frames in Flooded.Time
	BesideRate float64 // frames/s
	Kept       float64 // part of Spared's rate that Flooded has, but for time in which the machine did something else
}

// Passed are the messages that came in a time.
type Passed struct {
	Messages uint64
	Time     time.Duration
	Rate     float64       // messages/s
	Late     time.Duration // by how much the process between the workers ran late meanwhile: see schedlat
}

func (p *Passed) add(o Passed) {
	p.Messages += o.Messages
	p.Time += o.Time
	p.Late += o.Late
	p.Rate = perSecond(p.Messages, p.Time)
}

// perSecond is a rate; 0 for no time.
func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// leastKept is the part of its rate that a good peer keeps beside a flood, at least.
const leastKept = 0.5

// judge sets Kept: the message rate under the flood, relative to the rate beside forgers whose frames go nowhere. It
// reports whether that is enough, or nothing was counted. This process gets no forged frames. If it ran later under
// the flood than before, the machine was busy with other work, and that time does not count.
func (f *Flood) judge() bool {
	more := f.Flooded.Late
	if f.Spared.Time > 0 {
		more -= time.Duration(float64(f.Spared.Late) * float64(f.Flooded.Time) / float64(f.Spared.Time))
	}
	given := f.Flooded.Time - max(more, 0)
	if f.Spared.Messages == 0 || given <= 0 {
		return true
	}
	f.Kept = perSecond(f.Flooded.Messages, given) / f.Spared.Rate
	return f.Kept >= leastKept
}

// floodTurns is how often in an act messages are counted, in turns without and with forged frames to the sides.
const floodTurns = 2

// floodTime is for how long messages are counted at once.
func (s *soak) floodTime() time.Duration {
	return min(time.Second, max(s.cfg.Act/20, 250*time.Millisecond))
}

// flood starts the forgers, which run until ebb, and measures their cost.
func (s *soak) flood() {
	s.note("flood")
	if s.report.Flood == nil {
		s.report.Flood = &Flood{}
	}
	f, known, start := s.report.Flood, s.known, time.Now()
	s.passed(floodTurns*s.floodTime(), &f.Calm)
	told := s.unreachables()
	s.hostile = fail.Must(s.bed.Forge(s.rng.Uint64(), s.cfg.Plain))
	s.floods = time.Now()
	s.hostile.Compete(true)
	defer s.hostile.Compete(false)
	for range floodTurns {
		before := f.Spared.Time
		s.hostile.Spare(true)
		s.passed(s.floodTime(), &f.Spared)
		s.hostile.Spare(false)
		s.floods = s.floods.Add(f.Spared.Time - before)
		sent := s.hostile.Sent()
		s.passed(s.floodTime(), &f.Flooded)
		f.Beside += s.hostile.Sent() - sent
		f.BesideRate = perSecond(f.Beside, f.Flooded.Time)
	}
	s.noticed(told)
	s.blame("flood", known, s.starved("flood", start))
}

// unreachables is how many ICMP errors "destination unreachable" the two kernels have sent.
func (s *soak) unreachables() (sum uint64) {
	for side := range 2 {
		sum += fail.Must(s.bed.Unwanted(side)).Answers
	}
	return sum
}

// noticed checks what the flood has met: program and engine have dropped each kind of frame by its name, and, where
// connections are plain, no kernel has answered any. before is how many unreachables were sent by then.
func (s *soak) noticed(before uint64) {
	r, err := s.bed.Until(talkWithin, func(r [2]*Report) bool { return s.missed(r[0]) == "" && s.missed(r[1]) == "" })
	if !errors.Is(err, errTooLate) {
		fail.If(err)
	}
	s.record(r)
	for side := range r {
		if what := s.missed(r[side]); what != "" {
			s.violated("side %d: no frame was dropped for its %s: %+v, %+v", side, what, r[side].Program, r[side].Engine)
		}
	}
	if !s.cfg.Plain {
		return // a frame with any bits wrong may be for a port that has no socket
	}
	if after := s.unreachables(); after != before {
		s.violated("%d forged frames were answered by ICMP", after-before)
	}
}

// missed is the first kind of forged frames that was not dropped by name.
func (s *soak) missed(r *Report) string {
	type kind struct {
		what string
		n    uint64
	}
	p, e := &r.Program, &r.Engine
	kinds := []kind{{"VI", p.NoVI}, {"key", p.Key}}
	if s.cfg.Plain {
		kinds = append(kinds, kind{"source", p.Source}, kind{"version", p.Version}, kind{"length", p.Short})
	} else {
		kinds = append(kinds, kind{"seal", e.Forged}, kind{"number", e.Replayed}, kind{"lack of a seal", e.Unsealed})
	}
	for _, k := range kinds {
		if k.n == 0 {
			return k.what
		}
	}
	return ""
}

// passed counts the messages that flows take in a time.
func (s *soak) passed(d time.Duration, sum *Passed) {
	before := fail.Must(s.bed.Reports())
	mark := s.bed.lag.Mark()
	time.Sleep(d)
	after := fail.Must(s.bed.Reports())
	sum.add(Passed{
		Messages: after[0].Taken + after[1].Taken - before[0].Taken - before[1].Taken,
		Time:     time.Since(mark.At), Late: mark.Allow(0),
	})
	s.record(after)
}

// ebb ends the flood, if there is one.
func (s *soak) ebb() {
	if s.hostile == nil {
		return
	}
	s.hostile.Close()
	f := s.report.Flood
	f.Forged += s.hostile.Sent()
	f.Time += time.Since(s.floods)
	f.Rate = perSecond(f.Forged, f.Time)
	s.hostile = nil
}

// judgeFlood checks the counts of the whole soak.
func (s *soak) judgeFlood() {
	f := s.report.Flood
	if f != nil && !f.judge() {
		s.violated("beside %.0f forged frames/s %.0f messages/s came, %.0f beside forgers that spare us: %.0f %% is less than %.0f %%",
			f.BesideRate, f.Flooded.Rate, f.Spared.Rate, 100*f.Kept, 100*leastKept)
	}
}

// The frames that an attacker on the path forges from those that it sees. It leaves connection management alone,
// which is not authenticated: an attacker on the path can prevent a connection.

const (
	udpIPv4 = 14 + 20
	udpIPv6 = 14 + 40
	udpHead = 8
)

// dissect finds the source and the datagram in a frame for our port that has at least two bytes of payload; otherwise
// it returns nil.
func dissect(frame []byte) (source, udp []byte) {
	if len(frame) < udpIPv4+udpHead+2 {
		return nil, nil
	}
	proto, source, udp := frame[23], frame[14+12:14+16], frame[udpIPv4:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
	case unix.ETH_P_IPV6:
		if len(frame) < udpIPv6+udpHead+2 {
			return nil, nil
		}
		proto, source, udp = frame[20], frame[14+8:14+24], frame[udpIPv6:]
	default:
		return nil, nil
	}
	if proto != unix.IPPROTO_UDP || binary.BigEndian.Uint16(udp[2:]) != wire.Port {
		return nil, nil
	}
	return source, udp
}

// partsOf finds the parts of a frame of a VI; via is nil for others.
func partsOf(frame []byte) (source, udp, via []byte) {
	source, udp = dissect(frame)
	if len(udp) < udpHead+wire.HeaderLen || udp[udpHead] != wire.Version || udp[udpHead+1]&wire.KindConnect != 0 {
		return nil, nil, nil
	}
	return source, udp, udp[udpHead:]
}

// forgePlain changes a frame of a VI as an attacker off the path can; it returns nil for any other frame. Without
// seals, an attacker on the path could send anything that the peer can.
func forgePlain(rng *rand.Rand, frame []byte) []byte {
	source, _, via := partsOf(frame)
	if via == nil {
		return nil
	}
	switch rng.IntN(5) {
	case 0: // a VI guessed
		binary.BigEndian.PutUint32(via[4:], rng.Uint32())
	case 1: // a key guessed
		binary.BigEndian.PutUint64(via[8:], rng.Uint64())
	case 2: // another source
		source[rng.IntN(len(source))] ^= byte(1 + rng.IntN(255))
	case 3: // another version of the format
		via[0] ^= byte(1 + rng.IntN(255))
	case 4: // cut off
		frame = frame[:14+rng.IntN(len(frame)-14)]
	}
	return frame
}

// forge changes a frame of a VI; it returns nil for any other frame. All offsets are those of wire.PutSealed; a plain
// frame has the same first 16 bytes.
func forge(rng *rand.Rand, frame []byte) []byte {
	_, udp, via := partsOf(frame)
	if via == nil {
		return nil
	}
	switch rng.IntN(10) {
	case 0: // as it was: a replay
	case 1, 2: // bits anywhere
		for range 1 + rng.IntN(8) {
			frame[14+rng.IntN(len(frame)-14)] ^= 1 << rng.IntN(8)
		}
	case 3: // a VI guessed
		binary.BigEndian.PutUint32(via[4:], rng.Uint32())
	case 4: // a key guessed
		binary.BigEndian.PutUint64(via[8:], rng.Uint64())
	case 5: // a number that has not come yet
		n := binary.BigEndian.Uint64(via[16:])
		binary.BigEndian.PutUint64(via[16:], n+1+rng.Uint64N(1<<rng.IntN(63)))
	case 6: // another epoch
		binary.BigEndian.PutUint16(via[2:], uint16(rng.Uint32()))
	case 7: // a plain frame of some kind, its checksum right
		via[1] = byte(wire.KindData) + byte(rng.IntN(int(wire.KindPack)))
		binary.BigEndian.PutUint16(via[2:], uint16(rng.IntN(32)))
		n := len(via) - wire.HeaderLen
		binary.BigEndian.PutUint16(via[26:], uint16(n))
		wire.PutChecksum(via)
	case 8: // lengths that lie
		binary.BigEndian.PutUint16(udp[4:], uint16(rng.Uint32()))
	case 9: // cut off
		frame = frame[:14+rng.IntN(len(frame)-14)]
	}
	return frame
}

// Forge begins to send forged frames to both sides, of what passes on the bed, where connections are plain or sealed.
func (b *Bed) Forge(seed uint64, plain bool) (*testbed.Forger, error) {
	change := forge
	if plain {
		change = forgePlain
	}
	return b.Site.Middle.Forge(seed, change)
}
