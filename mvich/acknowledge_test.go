package mvich_test

import (
	"slices"
	"testing"

	"viaxdp/mvich"
)

// A death between Dead and Acknowledge is not acknowledged with those before: receives
// of anybody name it. Nor is it known in advance.
func TestAcknowledgeWhatWasSeen(t *testing.T) {
	const first, second = 2, 1
	j := dyingJob(t, 3, first, second)
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	c := j.worlds[0].Comm()
	c.Acknowledge([]int{-1, 0, first, second, 3}) // nobody of whom is dead, or there
	lose := func(victim int) {
		t.Helper()
		j.hosts[victim].Nic.Close()
		_, err := c.Recv(nil, victim, 1)
		if err := wantLost("receive", err, victim); err != nil {
			t.Fatal(err)
		}
	}
	lose(first)
	anybody := func() error {
		t.Helper()
		r, err := c.Irecv(nil, mvich.AnySource, 2)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cancel() {
			return nil // it would wait
		}
		_, err = r.Wait()
		return err
	}
	if err := wantLost("receive of anybody", anybody(), first); err != nil {
		t.Error(err)
	}
	seen := c.Dead()
	lose(second)
	c.Acknowledge(seen)
	if err := wantLost("receive of anybody after a death that was not seen", anybody(), second); err != nil {
		t.Error(err)
	}
	if dead := c.Dead(); !slices.Equal(dead, []int{second, first}) {
		t.Errorf("dead: %v", dead)
	}
	c.Acknowledge(c.Dead())
	if err := anybody(); err != nil {
		t.Errorf("receive of anybody when all deaths are known: %v", err)
	}
	if err := wantLost("finalize", j.worlds[0].Finalize(), first); err != nil {
		t.Error(err)
	}
}
