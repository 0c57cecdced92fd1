package vianet

import "fmt"

// Unbalanced says what is missing of the way from one end of an idle connection,
// on which everything has been read, to the other; nothing is "".
func Unbalanced(from, to *Conn) string {
	from.progress()
	from.mu.Lock()
	free, credits, out := len(from.pool.free), from.credits, from.out
	if from.fill >= 0 {
		free++
	}
	from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	switch {
	case free != from.pool.half:
		return fmt.Sprintf("%d of %d buffers for sending are free\n", free, from.pool.half)
	case out.open || out.flight > 0:
		return "the last transfer is not over\n"
	case to.held > 0 || to.in.flight > 0 || to.in.staged > 0 || to.in.open:
		return fmt.Sprintf("the receiver holds %d messages and %+v\n", to.held, to.in)
	case credits+to.owed != to.dataBuffers():
		return fmt.Sprintf("%d credits, %d owed, %d data buffers\n", credits, to.owed, to.dataBuffers())
	}
	return ""
}
