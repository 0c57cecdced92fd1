package suite

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"viaxdp/bench/report"
)

// A group is one question and how it is answered.
type group struct {
	name, title string

	slow bool // runs only when it is named, and for All

	// cost is about how long run takes.
	cost func(*session) time.Duration

	// run measures, in s.turns() turns in each of which all rows are gone
	// through. Name and title of its result are set by the caller.
	run func(*session) (*report.Group, error)
}

// groups are all of them, in the order of the report.
func groups() []group {
	return slices.Concat(basicGroups, vibeGroups, opsGroups, transactionGroups, loadGroups, lossGroups, queueGroups, incastGroups,
		ablationGroups, layerGroups, proxyGroups, osuGroups, layerLossGroups, scalingGroups, peerGroups)
}

// Group is a group's name and what it is about, in one line.
type Group struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Slow  bool   `json:"slow,omitempty"` // runs only when it is named, and for All
}

// Groups lists all groups in the order of the report.
func Groups() []Group {
	var list []Group
	for _, g := range groups() {
		list = append(list, Group{g.name, g.title, g.slow})
	}
	return list
}

// All is the word for all groups, also the slow ones.
const All = "all"

// choose finds the groups that words name, each once, in the order of the
// report; without words all but the slow ones. A word is a name or the beginning of
// names, or All; one that is a name means that group alone.
func choose(words []string) ([]group, error) {
	all := groups()
	if len(words) == 0 {
		return slices.DeleteFunc(all, func(g group) bool { return g.slow }), nil
	}
	wanted := map[string]bool{}
	for _, w := range words {
		found := w == All
		if found {
			for _, g := range all {
				wanted[g.name] = true
			}
		}
		exact := slices.ContainsFunc(all, func(g group) bool { return g.name == w })
		for _, g := range all {
			if g.name == w || !exact && w != "" && strings.HasPrefix(g.name, w) {
				wanted[g.name], found = true, true
			}
		}
		if !found {
			var names []string
			for _, g := range all {
				names = append(names, g.name)
			}
			return nil, fmt.Errorf("no group %q: there are %s, and %s", w, strings.Join(names, ", "), All)
		}
	}
	return slices.DeleteFunc(all, func(g group) bool { return !wanted[g.name] }), nil
}
