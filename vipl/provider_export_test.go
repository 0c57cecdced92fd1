package vipl

import (
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/secure"
)

// Port is provider.Port.
type Port = provider.Port

// Provider is provider.Provider with the options as fields.
type Provider struct {
	Port        Port
	GSO         provider.GSO
	Agent       kagent.Agent
	Arena       *hugepages.Arena
	Info        kagent.Info
	Silence     time.Duration
	NoPacking   bool
	BareData    bool
	NoPollPause bool
	PSK         *PSK
	Rekey       secure.Limits

	steady bool
}

// Open is provider.OpenNIC.
func Open(p Provider) (*NIC, error) {
	return open(provider.Provider{Port: p.Port, GSO: p.GSO, Agent: p.Agent, Arena: p.Arena, Info: p.Info, Rekey: p.Rekey}, options{
		silence: p.Silence, noPacking: p.NoPacking, bareData: p.BareData, noPollPause: p.NoPollPause, psk: p.PSK, steady: p.steady,
	})
}
