package vipltest

import (
	"slices"
	"strings"
	"testing"

	"viaxdp/vipl"
)

// Config is a provider under test.
type Config struct {
	// Open opens a pair of NICs on one link, which t.Cleanup closes. It is called
	// once for each group of rules, for rules that need NICs of their own, and
	// after a failure.
	Open func(t testing.TB) (a, b *vipl.NIC)

	// OpenSilent, unless nil, opens a pair as Open does, with the time after which
	// a peer is taken for dead as short as it can be, and a function after which
	// the NICs hear nothing of each other any more. Without it what becomes of a
	// silent peer is not asked.
	OpenSilent func(t testing.TB) (a, b *vipl.NIC, silence func())

	// Lossy says that frames get lost, come twice and overtake each other: what
	// rests on an unreliable VI losing nothing is not asked.
	Lossy bool

	// Burst, unless 0, is how many bytes the link takes in one go without losing any:
	// a NIC whose processor is kept from its work has room for no more. Unreliable VIs
	// send no longer messages, and where many are under way no more of them.
	Burst int

	// Groups that are asked; nil: all.
	Groups []string
}

// Rule is one rule of the VIPL and its test.
type Rule struct {
	ID       string // group/rule, which is also the test's name
	Text     string // the rule, a sentence
	Choice   string // what this provider does where the VIPL leaves it open, or ""
	Lossless bool   // asked only where nothing gets lost

	run func(t *T)
}

// rule is a rule of the VIPL.
func rule(id, text string, run func(t *T)) Rule { return Rule{ID: id, Text: text, run: run} }

// choice is a rule that leaves something open, and what this provider does there.
func choice(id, text, choice string, run func(t *T)) Rule {
	return Rule{ID: id, Text: text, Choice: choice, run: run}
}

// lossless is a rule that is asked only where nothing gets lost.
func lossless(id, text string, run func(t *T)) Rule {
	return Rule{ID: id, Text: text, Lossless: true, run: run}
}

// eachLevel is a rule's test for each level at which every message arrives.
func eachLevel(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachOf(t.levels(), f) }
}

// eachReliable is eachLevel for the two reliable levels.
func eachReliable(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachOf(reliableLevels, f) }
}

// everyLevel is eachLevel for all levels, for what frames that get lost do not change.
func everyLevel(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachOf(allLevels, f) }
}

// local is a rule's test for two VIs of one NIC.
func local(f func(t *T)) func(*T) {
	return func(t *T) {
		t.B = t.A
		f(t)
	}
}

// Group is what stands before the slash of the ID.
func (r Rule) Group() string {
	group, _, _ := strings.Cut(r.ID, "/")
	return group
}

// Outcomes of a rule.
const (
	Pass     = "pass"
	Fail     = "fail"
	NotAsked = "not asked"
)

// Result is what became of a rule.
type Result struct{ Rule, Outcome string }

// Rules are all rules, group by group.
func Rules() []Rule {
	return slices.Concat(
		nicRules, memoryRules, viRules,
		descriptorRules, sendRules, rdmaWriteRules, rdmaReadRules, reliabilityRules,
		cqRules, notifyRules, asyncRules,
		connectRules, peerRules, localRules, nameRules,
		limitRules, concurrencyRules,
	)
}

// Run tests a provider: a subtest for each group, and in it one for each rule.
// It returns the results of the rules that -run did not leave out.
func Run(t *testing.T, c Config) []Result {
	var results []Result
	rules := Rules()
	for _, group := range c.Groups {
		if !slices.ContainsFunc(rules, func(r Rule) bool { return r.Group() == group }) {
			t.Errorf("there is no group %s", group)
		}
	}
	for len(rules) > 0 {
		group := rules[0].Group()
		n := 1
		for n < len(rules) && rules[n].Group() == group {
			n++
		}
		if c.Groups == nil || slices.Contains(c.Groups, group) {
			t.Run(group, func(t *testing.T) { results = append(results, runGroup(t, c, rules[:n])...) })
		}
		rules = rules[n:]
	}
	return results
}

func runGroup(t *testing.T, c Config, rules []Rule) (results []Result) {
	var a, b *vipl.NIC
	for _, r := range rules {
		if c.Lossy && r.Lossless {
			results = append(results, Result{r.ID, NotAsked})
			continue
		}
		if a == nil {
			a, b = c.Open(t)
		}
		_, name, _ := strings.Cut(r.ID, "/")
		t.Run(name, func(t *testing.T) {
			defer func() { results = append(results, Result{r.ID, outcome(t)}) }()
			r.run(newT(t, c, a, b))
		})
		if n := len(results); n > 0 && results[n-1].Outcome == Fail {
			a, b = nil, nil // the next rule shall not suffer from it
		}
	}
	return results
}

func outcome(t *testing.T) string {
	switch {
	case t.Failed():
		return Fail
	case t.Skipped():
		return NotAsked
	}
	return Pass
}
