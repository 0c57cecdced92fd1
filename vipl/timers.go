package vipl

// timerHeap orders connections by the time at which they want attention. A
// connection's true time mostly moves later (each acknowledgement restarts a
// retransmission timer), so that due is only a lower bound: it is lowered
// eagerly and raised when it comes up.
type timerHeap []*conn

// schedule brings c up at t at the latest.
func (h *timerHeap) schedule(c *conn, t int64) {
	if c.timer == 0 {
		*h = append(*h, c)
		c.timer = len(*h)
		c.due = t
		h.up(c.timer - 1)
	} else if t < c.due {
		c.due = t
		h.up(c.timer - 1)
	}
}

// postpone moves c, which came up, to t.
func (h timerHeap) postpone(c *conn, t int64) {
	c.due = t
	h.down(c.timer - 1)
}

func (h *timerHeap) remove(c *conn) {
	if c.timer == 0 {
		return
	}
	i, last := c.timer-1, len(*h)-1
	(*h)[i] = (*h)[last]
	(*h)[i].timer = i + 1
	(*h)[last] = nil
	*h = (*h)[:last]
	c.timer = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer, h[j].timer = i+1, j+1
}

func (h timerHeap) up(i int) {
	for i > 0 && h[i].due < h[(i-1)/2].due {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timerHeap) down(i int) {
	for {
		least := i
		for _, j := range [2]int{2*i + 1, 2*i + 2} {
			if j < len(h) && h[j].due < h[least].due {
				least = j
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
