package connmgr_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
)

// An acceptor that asks for a proof takes no other confirmation, and goes on
// waiting for the right one.
func TestConfirmNeedsProof(t *testing.T) {
	proof := string(make([]byte, wire.CMProofLen))
	for _, c := range []struct {
		name  string
		want  string // what the acceptor asks for
		sends string // what the requester confirms with
		good  bool
	}{
		{"none asked, none sent", "", "", true},
		{"the right one", proof, proof, true},
		{"none", proof, "", false},
		{"another", proof, "another of 16 b.", false},
		{"not asked for", "", proof, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
				ao, bo := offer(a, t), offer(b, t)
				bo.Confirm = kagent.Opaque(c.want)
				served := serve(b, echo, bo)
				synctest.Wait()
				ans, err := a.Request(within(time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
				if err != nil {
					t.Fatal(err)
				}
				if ans.Offer.Confirm != "" {
					t.Error("the acceptor told what it wants to hear")
				}
				if err := ans.ConfirmWith([]byte(c.sends)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if n := b.Counters().Forged; (n == 0) != c.good {
					t.Errorf("%d forged confirmations were counted", n)
				}
				select {
				case got := <-served:
					if !c.good || got.err != nil {
						t.Errorf("accepted: %v", got.err)
					}
				default:
					if c.good {
						t.Error("not accepted")
					} else if got := <-served; !errors.Is(got.err, kagent.ErrVanished) && !errors.Is(got.err, kagent.ErrTimeout) {
						t.Errorf("in the end: %v", got.err)
					}
				}
			})
		})
	}
}
