package support

import (
	"errors"
	"fmt"

	"github.com/safchain/ethtool"

	"viaxdp/internal/base/steer"
)

// Ethtool is the Driver of an interface of the calling thread's network
// namespace.
type Ethtool struct{ Name string }

func (e Ethtool) with(f func(*ethtool.Ethtool) error) error {
	h, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer h.Close()
	return f(h)
}

// Stats are the driver's counters.
func (e Ethtool) Stats() (m map[string]uint64, err error) {
	err = e.with(func(h *ethtool.Ethtool) error { m, err = h.Stats(e.Name); return err })
	return m, err
}

// Features are the offloads.
func (e Ethtool) Features() (m map[string]bool, err error) {
	err = e.with(func(h *ethtool.Ethtool) error { m, err = h.Features(e.Name); return err })
	return m, err
}

// Settings are what else the driver tells; what it does not know is left out
// and named in the error.
func (e Ethtool) Settings() (map[string]string, error) {
	m := make(map[string]string)
	var errs []error
	err := e.with(func(h *ethtool.Ethtool) error {
		set := func(name string, v any, err error) {
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				return
			}
			m[name] = fmt.Sprintf("%+v", v)
		}
		if i, err := h.DriverInfo(e.Name); err != nil {
			set("driver", nil, err)
		} else {
			m["driver"], m["driver version"], m["firmware"] = i.Driver, i.Version, i.FwVersion
		}
		channels, err := h.GetChannels(e.Name)
		set("channels", channels, err)
		ring, err := h.GetRing(e.Name)
		set("rings", ring, err)
		coalesce, err := h.GetCoalesce(e.Name)
		set("coalescing", coalesce, err)
		pause, err := h.GetPause(e.Name)
		set("pause", pause, err)
		return nil
	})
	// Which queue frames come in on.
	nic, nicErr := steer.Open(e.Name)
	if nicErr != nil {
		return m, errors.Join(append(errs, err, nicErr)...)
	}
	defer nic.Close()
	if table, err := nic.Table(); err != nil {
		errs = append(errs, fmt.Errorf("indirection table: %w", err))
	} else {
		m["indirection table"] = fmt.Sprint(table)
	}
	if rules, err := nic.Rules(); err != nil {
		errs = append(errs, fmt.Errorf("rules for UDP ports: %w", err))
	} else {
		m["rules for UDP ports"] = fmt.Sprintf("%+v", rules)
	}
	return m, errors.Join(append(errs, err)...)
}
