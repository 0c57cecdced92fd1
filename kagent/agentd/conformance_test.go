package agentd_test

import (
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
)

// overAgents is NICs that agents at both ends of a veth pair have opened.
func overAgents(opts ...vipl.Option) vipltest.Config {
	open := func(t testing.TB, silence time.Duration) (nics []*vipl.Nic, ends []*nstest.NS) {
		a, b := nstest.Pair(t, nstest.Options{})
		ends = []*nstest.NS{a, b}
		for _, ns := range ends {
			g := startAgent(t, ns, agentConfig{})
			nics = append(nics, g.nic(append(opts, vipl.WithArena(48<<20), vipl.WithSilence(silence))...))
		}
		return nics, ends
	}
	return vipltest.Config{
		Open: func(t testing.TB) (a, b *vipl.Nic) {
			nics, _ := open(t, vipl.DefaultSilence)
			return nics[0], nics[1]
		},
		OpenSilent: func(t testing.TB) (a, b *vipl.Nic, silence func()) {
			nics, ends := open(t, 300*time.Millisecond)
			return nics[0], nics[1], func() {
				link, err := ends[1].Netlink().LinkByIndex(ends[1].Index)
				if err == nil {
					err = ends[1].Netlink().LinkSetDown(link)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		},
	}
}

// Every rule of the VIPL holds for a NIC that an agent has opened.
func TestConformance(t *testing.T) {
	c := overAgents()
	if testing.Short() { // what the agent has most part in
		c.Groups = []string{"client-server", "peer-to-peer"}
	}
	vipltest.Run(t, c)
}
