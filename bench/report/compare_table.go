package report

import (
	"bufio"
	"fmt"
	"io"
)

// WriteTable prints a comparison: a table for each group with A, B, and B by A,
// where * stands for a difference beyond the spread of the turns and ! for a
// point that was disturbed; then what differs otherwise; then a line that sums
// it up.
func (c *Comparison) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(w)
	var t grid
	for i, d := range c.Differences {
		if i == 0 || c.Differences[i-1].Group != d.Group {
			t.write(out)
			if i > 0 {
				fmt.Fprintln(out)
			}
			t = grid{{d.Group, "at", "figure", "A", "B", "B/A", "", ""}}
		}
		t = append(t, d.row())
	}
	t.write(out)
	for _, l := range []struct {
		head string
		list []string
	}{
		{"Other conditions:", c.Conditions},
		{"Only in A:", c.OnlyA},
		{"Only in B:", c.OnlyB},
	} {
		if len(l.list) > 0 {
			fmt.Fprintf(out, "\n%s\n", l.head)
		}
		for _, s := range l.list {
			fmt.Fprintf(out, "  %s\n", oneLine(s))
		}
	}
	fmt.Fprintf(out, "\n%s\n", c.summary())
	return out.Flush()
}

func (d Difference) row() []string {
	mark, verdict := "", ""
	if d.Marked() {
		mark, verdict = "*", "better"
		if d.Worse() > 0 {
			verdict = "worse"
		}
	}
	if d.Disturbed {
		mark += "!"
	}
	return []string{oneLine(d.Series), oneLine(d.At), oneLine(string(d.Metric)),
		round(d.A.Median), round(d.B.Median), fixed(d.Ratio(), 3), mark, verdict}
}

// summary is one line about everything.
func (c *Comparison) summary() string {
	worse, better, single := 0, 0, 0
	worst := Difference{}
	for _, d := range c.Differences {
		if len(d.A.Turns) < 2 && len(d.B.Turns) < 2 {
			single++
		}
		switch {
		case !d.Marked():
		case d.Worse() > 0:
			worse++
			if !d.aside() && (worst.Metric == "" || d.Worse() > worst.Worse()) {
				worst = d
			}
		default:
			better++
		}
	}
	s := fmt.Sprintf("%d figures in both: beyond the spread of the turns (*) %d are worse in B, %d better", len(c.Differences), worse, better)
	if worst.Metric != "" {
		s += fmt.Sprintf("; most of all %s by %s%%",
			oneLine(place(worst.Group, worst.Series, worst.At, string(worst.Metric))), fixed(worst.Worse(), 1))
	}
	if single > 0 {
		s += fmt.Sprintf("; %d have a single turn on both sides, whose spread is not known", single)
	}
	return s + "."
}
