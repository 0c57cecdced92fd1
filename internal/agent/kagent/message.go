package kagent

import (
	"errors"
	"viaxdp/hugepages"
	"viaxdp/xdpnic"
)

// InfoMessage is an Info for encoding: its errors are text.
type InfoMessage struct {
	Info     Info
	Attempts []AttemptMessage `json:",omitempty"`
	NIC      []AttemptMessage `json:",omitempty"`
	Refused  []RefusalMessage `json:",omitempty"`
	Features string           `json:",omitempty"` // error of querying them
}

// AttemptMessage is an xdpnic.Attempt for encoding.
type AttemptMessage struct {
	Mode xdpnic.Mode
	Err  string `json:",omitempty"`
}

// RefusalMessage is a hugepages.Refusal for encoding.
type RefusalMessage struct {
	Step               hugepages.Kind
	Err, Cause, Remedy string `json:",omitempty"`
}

// Message converts an Info for encoding.
func (i Info) Message() InfoMessage {
	m := InfoMessage{
		Attempts: attemptMessages(i.Attempts), NIC: attemptMessages(i.NIC.Attempts), Features: text(i.NIC.FeaturesErr),
	}
	for _, r := range i.Arena.Refused {
		m.Refused = append(m.Refused, RefusalMessage{r.Step, text(r.Err), r.Cause, r.Remedy})
	}
	i.Attempts, i.NIC.Attempts, i.NIC.FeaturesErr, i.Arena.Refused = nil, nil, nil, nil
	m.Info = i
	return m
}

// Restore is Message's inverse.
func (m InfoMessage) Restore() Info {
	i := m.Info
	i.Attempts, i.NIC.Attempts, i.NIC.FeaturesErr = attempts(m.Attempts), attempts(m.NIC), textError(m.Features)
	i.Arena.Refused = nil
	for _, r := range m.Refused {
		i.Arena.Refused = append(i.Arena.Refused, hugepages.Refusal{
			Step: r.Step, Err: textError(r.Err), Cause: r.Cause, Remedy: r.Remedy,
		})
	}
	return i
}

// QueueMessage is an xdpnic.Handout for encoding.
type QueueMessage struct {
	Config xdpnic.Config
	NIC    xdpnic.Info
}

func NewQueueMessage(h xdpnic.Handout) QueueMessage {
	m := QueueMessage{h.Config, h.Info}
	m.Config.Share = nil
	m.NIC.Attempts, m.NIC.FeaturesErr = nil, nil // they are in the Info
	return m
}

// Restore returns the argument of xdpnic.Adopt.
func (m QueueMessage) Restore(i Info) xdpnic.Handout {
	m.NIC.Attempts, m.NIC.FeaturesErr = i.NIC.Attempts, i.NIC.FeaturesErr
	return xdpnic.Handout{Config: m.Config, Info: m.NIC}
}

func attemptMessages(list []xdpnic.Attempt) (m []AttemptMessage) {
	for _, a := range list {
		m = append(m, AttemptMessage{a.Mode, text(a.Err)})
	}
	return m
}

func attempts(m []AttemptMessage) (list []xdpnic.Attempt) {
	for _, a := range m {
		list = append(list, xdpnic.Attempt{Mode: a.Mode, Err: textError(a.Err)})
	}
	return list
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func textError(s string) error {
	if s == "" {
		return nil
	}
	return errors.New(s)
}
