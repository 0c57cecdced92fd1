package vipl

// Influx is a stream that comes in, by itself.
type Influx struct{ influx }

// Came is came.
func (s *Influx) Came(n int, now int64, window int, asked bool) (until int64) {
	return s.came(n, now, window, asked)
}
