package agentd

import (
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
)

// watchLink tells the program of its interface once: how it is, the first time, and
// then of the next change. A program that takes its time, or is stopped, has at most
// a message or two in its socket: it gets the latest when it asks again.
func (c *conn) watchLink() {
	if c.asked == nil {
		c.asked = make(chan struct{}, 1)
		c.beginWatch()
	}
	select {
	case c.asked <- struct{}{}:
	default:
	}
}

// beginWatch has each message wait until the program has asked for it.
func (c *conn) beginWatch() {
	latest := make(chan kagent.Link, 1)
	c.n.local.Watch(func(l kagent.Link) {
		select {
		case <-latest:
		default:
		}
		latest <- l // nobody else puts anything in
	})
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		defer c.n.local.Watch(nil)
		for {
			select {
			case <-c.asked:
			case <-c.over:
				return
			}
			select {
			case l := <-latest:
				_ = c.write(&agentproto.Reply{Link: &l}) // or the connection ends
			case <-c.over:
				return
			}
		}
	}()
}
