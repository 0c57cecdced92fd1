package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"viaxdp/vm/plan"
)

// Whatever a guest writes, each line is an event, or one is named that is none; what is read is written and read
// again the same; and the judgement is good only of a guest that has reported every step, without a fault, and its end.
func FuzzEvents(f *testing.F) {
	lines := func(events []plan.Event) []byte {
		var b bytes.Buffer
		for _, e := range events {
			line, err := json.Marshal(e)
			if err != nil {
				f.Fatal(err)
			}
			b.Write(append(line, '\n'))
		}
		return b.Bytes()
	}
	asked := order{mode: native, short: true}
	all := lines(green(f, asked))
	f.Add(all)
	f.Add(all[:len(all)/2])
	f.Add([]byte("{\"Step\":\"boot\"}\nSeaBIOS\n"))
	f.Add([]byte("{\"Step\":\"interface\",\"Stdout\":\"[{}]\"}\n{\"Done\":true}"))
	f.Add([]byte("null\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		events, err := readEvents(bytes.NewReader(b))
		if n := bytes.Count(b, []byte("\n")); len(events) > n+1 || err == nil && len(events) < n {
			t.Fatalf("%d events in %d lines", len(events), n)
		}
		if err != nil && !strings.Contains(err.Error(), "line ") {
			t.Fatal(err)
		}
		if back, err := readEvents(bytes.NewReader(lines(events))); err != nil || !reflect.DeepEqual(back, events) {
			t.Fatalf("%+v are read again as %+v: %v", events, back, err)
		}
		o := judge(events, asked)
		done := false
		seen := make(map[string]bool)
		bad := ""
		status := make(map[string]int)
		for _, e := range events {
			done = done || e.Done
			if !e.Done && e.Step != "" {
				seen[e.Step] = true
				status[e.Step] = e.Status
			}
		}
		for _, s := range asked.plan().Steps {
			if !seen[s.Name] || status[s.Name] != 0 {
				bad = s.Name
			}
		}
		if o.err() == nil && (!done || bad != "" || o.tests <= 0 || !o.modes[asked.mode] || len(o.figures) != len(asked.rows())) {
			t.Fatalf("%s is good: done %v, without %q, %d tests", b, done, bad, o.tests)
		}
		if o.tests < 0 || len(o.figures) > len(asked.rows()) || o.events != len(events) {
			t.Fatalf("%+v", o)
		}
	})
}
