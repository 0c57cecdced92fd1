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

	// OpenSilent, unless nil, opens a pair as Open does, with the shortest possible silence time. After a call
	// of silence the NICs no longer reach each other. If it is nil, the rules about a silent peer are skipped.
	OpenSilent func(t testing.TB) (a, b *vipl.NIC, silence func())

	// Lossy means that frames are lost, duplicated and reordered. Rules that need an unreliable VI to lose
	// nothing are skipped.
	Lossy bool

	// Burst, unless 0, is the number of bytes that the link takes at once without loss, for a NIC whose CPU may
	// be busy elsewhere. Unreliable VIs send no longer messages, and have no more bytes under way.
	Burst int

	// Groups to test; nil: all.
	Groups []string
}

// Rule is one rule of the VIPL and its test.
type Rule struct {
	ID       string // group/rule, which is also the test's name
	Text     string // the rule, a sentence
	Choice   string // this provider's choice where the VIPL leaves one, or ""
	Lossless bool   // skipped if Config.Lossy is set

	run func(t *T)
}

// rule returns a rule of the VIPL.
func rule(id, text string, run func(t *T)) Rule { return Rule{ID: id, Text: text, run: run} }

// choice returns a rule that leaves a choice, and this provider's choice.
func choice(id, text, choice string, run func(t *T)) Rule {
	return Rule{ID: id, Text: text, Choice: choice, run: run}
}

// lossless returns a rule that is skipped if frames are lost.
func lossless(id, text string, run func(t *T)) Rule {
	return Rule{ID: id, Text: text, Lossless: true, run: run}
}

// eachLevel returns a rule's test for each level at which every message arrives.
func eachLevel(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachOf(t.levels(), f) }
}

// eachReliable is eachLevel for the two reliable levels.
func eachReliable(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachOf(reliableLevels, f) }
}

// everyLevel is eachLevel for all levels. The loss of frames must not matter to the rule.
func everyLevel(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachOf(allLevels, f) }
}

// local returns a rule's test for two VIs of one NIC.
func local(f func(t *T)) func(*T) {
	return func(t *T) {
		t.B = t.A
		f(t)
	}
}

// Group returns the part of the ID before the slash.
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

// Rules returns all rules, group by group.
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
// It returns the outcomes of the rules that -run did not leave out, by their IDs.
func Run(t *testing.T, c Config) map[string]string {
	outcomes := make(map[string]string)
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
			t.Run(group, func(t *testing.T) { runGroup(t, c, rules[:n], outcomes) })
		}
		rules = rules[n:]
	}
	return outcomes
}

func runGroup(t *testing.T, c Config, rules []Rule, outcomes map[string]string) {
	var a, b *vipl.NIC
	for _, r := range rules {
		if c.Lossy && r.Lossless {
			outcomes[r.ID] = NotAsked
			continue
		}
		if a == nil {
			a, b = c.Open(t)
		}
		_, name, _ := strings.Cut(r.ID, "/")
		t.Run(name, func(t *testing.T) {
			defer func() { outcomes[r.ID] = outcome(t) }()
			r.run(newT(t, c, a, b))
		})
		if outcomes[r.ID] == Fail {
			a, b = nil, nil // new NICs, so that the failure does not affect the next rule
		}
	}
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
