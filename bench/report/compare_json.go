package report

import (
	"encoding/json"
	"fmt"
	"io"
)

// difference is a Difference as WriteJSON has it.
type difference struct {
	Group     string `json:"group"`
	Series    string `json:"series"`
	At        string `json:"at"`
	Metric    Metric `json:"metric"`
	A         Value  `json:"a"`
	B         Value  `json:"b"`
	Ratio     number `json:"ratio"`         // B by A
	Worse     number `json:"worse_percent"` // of B; negative: better
	Marked    bool   `json:"marked"`        // beyond the spread of the turns of both
	Disturbed bool   `json:"disturbed"`
}

// WriteJSON writes a comparison as one indented JSON object: what WriteTable prints.
// Figures that are not finite become null.
func (c *Comparison) WriteJSON(w io.Writer) error {
	out := struct {
		Differences []difference `json:"differences"`
		OnlyA       []string     `json:"only_a"`
		OnlyB       []string     `json:"only_b"`
		Conditions  []string     `json:"conditions"`
		Summary     string       `json:"summary"`
	}{[]difference{}, list(c.OnlyA), list(c.OnlyB), list(c.Conditions), c.summary()}
	for _, d := range c.Differences {
		out.Differences = append(out.Differences, difference{
			Group: d.Group, Series: d.Series, At: d.At, Metric: d.Metric, A: d.A, B: d.B,
			Ratio: number(d.Ratio()), Worse: number(d.Worse()), Marked: d.Marked(), Disturbed: d.Disturbed,
		})
	}
	b, err := json.MarshalIndent(&out, "", "  ")
	if err != nil {
		return fmt.Errorf("comparison: %w", err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// list is [] in JSON where there is nothing, rather than null.
func list(s []string) []string { return append([]string{}, s...) }
