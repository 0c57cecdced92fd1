package agentd_test

import (
	"slices"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
)

// overAgents has two agents open NICs, each two at the ends of a veth pair of their own. When they are closed,
// nothing of them may be left.
func overAgents(t *testing.T) vipltest.Config {
	a, b := pair(t, nstest.Options{}, agentConfig{})
	pairs := 0
	open := func(t testing.TB, silence time.Duration) (nics []*vipl.NIC, ends []*nstest.NS) {
		pairs++
		na, nb := nstest.Another(t, a.ns, b.ns, pairs, nstest.Options{})
		ends = []*nstest.NS{na, nb}
		for i, g := range []*agent{a, b} {
			n, err := vipl.OpenNIC(ends[i].Name, vipl.WithAgent(g.socket), vipl.WithArena(48<<20), vipl.WithSilence(silence))
			nstest.Must(t, err)
			t.Cleanup(func() {
				nstest.Check(t, n.Close())
				st := g.status(t)
				if slices.ContainsFunc(st.NICs, func(n kagent.NICStatus) bool { return n.Interface == ends[i].Name }) {
					t.Errorf("after Close the agent still has %+v", st.NICs)
				}
			})
			nics = append(nics, n)
		}
		return nics, ends
	}
	return vipltest.Config{
		Open: func(t testing.TB) (a, b *vipl.NIC) {
			nics, _ := open(t, vipl.DefaultSilence)
			return nics[0], nics[1]
		},
		OpenSilent: func(t testing.TB) (a, b *vipl.NIC, silence func()) {
			nics, ends := open(t, 300*time.Millisecond)
			return nics[0], nics[1], func() {
				link, err := ends[1].Netlink().LinkByIndex(ends[1].Index)
				if err == nil {
					err = ends[1].Netlink().LinkSetDown(link)
				}
				nstest.Must(t, err)
			}
		},
	}
}

// Every rule of the VIPL holds for a NIC that an agent has opened.
func TestConformance(t *testing.T) {
	c := overAgents(t)
	if testing.Short() { // what the agent has most part in
		c.Groups = []string{"client-server", "peer-to-peer"}
	}
	vipltest.Run(t, c)
}
