package vipl_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/testsize"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Random programs of both sides give what the rules say: the same completions
// in the same order, the same bytes, the same asynchronous errors. The rules
// are in model_rules_test.go.

// modelNet is a net with room for so many chunks: many where nothing holds
// unreliable VIs back, few where windows are to be full. Long frames have up to
// four chunks.
func modelNet(t testing.TB, chunks int, long bool) *memoryNet {
	// By silence a VI learns of an end of which no frame has come: well within modelPatience.
	c := memoryConfig{arena: 8 << 20, silence: 4 * time.Second}
	c.queue.RxChunks, c.queue.TxChunks = chunks, 64
	if long {
		c.mtu, c.queue.MultiBuffer = 6000, true
	}
	return newMemoryNet(t, c)
}

// TestModel is short, and shrinks: a failure shows the least program. The NICs
// outlive the programs, but for one that failed.
func TestModel(t *testing.T) {
	var n *memoryNet
	patience := modelPatience
	rapid.Check(t, func(r *rapid.T) {
		if n == nil {
			n = modelNet(t, 1024, false)
		}
		m := newModel(r, n, levels, randomDice(uint64(rapid.Uint16().Draw(r, "start"))))
		m.patience = patience
		defer func() {
			if m.differs {
				n, patience = nil, 300*time.Millisecond // to shrink takes many failures
			}
		}()
		defer func() {
			if !m.differs {
				m.close() // also when the program ended before its time
			}
		}()
		// One number an operation: to shrink is to leave operations out.
		for _, seed := range rapid.SliceOfN(rapid.Uint16(), 1, 60).Draw(r, "program") {
			m.dice = randomDice(uint64(seed))
			m.operation()
		}
		m.settle()
	})
}

func randomDice(seed uint64) dice {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(_ string, n int) int { return rng.IntN(n) }
}

// sequenceSteps is how long the VIs and the memory of a program live.
const sequenceSteps = 500

// runModel runs programs, one behind the other, on long-lived NICs. VIA_SEED
// repeats a run, as far as timing allows.
func runModel(t *testing.T, which []vipl.ReliabilityLevel, faults xdpnictest.Faults, long bool, steps int) {
	seed := testsize.Seed(t)
	chunks := 1024
	if faults.Loss > 0 {
		chunks = 64
	}
	n := modelNet(t, chunks, long)
	faults.Seed = seed
	n.wire.SetFaults(faults)
	roll := randomDice(seed)
	start, done, sequences := time.Now(), 0, 0
	for done < steps {
		m := newModel(t, n, which, roll)
		m.faults = faults.Loss > 0
		for m.steps < sequenceSteps {
			m.operation()
		}
		m.close()
		done += m.steps
		sequences++
	}
	a, b := n.a.Counters(), n.b.Counters()
	t.Logf("frames sent again: %d; lent: %d", a.Resent+b.Resent, a.Lent+b.Lent)
	if long && done > 2000 && a.Lent+b.Lent == 0 {
		t.Error("no frame was long")
	}
	t.Logf("%d steps in %d programs, %.0f steps a second", done, sequences, float64(done)/time.Since(start).Seconds())
}

// modelSteps is the number of steps of a long run: VIA_STEPS, or few.
func modelSteps(t *testing.T) int {
	return testsize.Number(t, "VIA_STEPS", 20_000, 20_000)
}

// TestModelLong runs VIA_STEPS steps.
func TestModelLong(t *testing.T) { runModel(t, levels, xdpnictest.Faults{}, false, modelSteps(t)) }

// TestModelLongFrames runs fewer on queues that take frames of several chunks.
func TestModelLongFrames(t *testing.T) {
	runModel(t, levels, xdpnictest.Faults{}, true, modelSteps(t)/4)
}

// TestModelLongFaults runs fewer on a bad wire, which reliable VIs do not let
// the program see.
func TestModelLongFaults(t *testing.T) {
	bad := xdpnictest.Faults{Loss: 0.02, Dup: 0.05, Reorder: 0.05, Corrupt: 0.01}
	runModel(t, reliableLevels, bad, false, modelSteps(t)/50)
	runModel(t, reliableLevels, bad, true, modelSteps(t)/50)
}
