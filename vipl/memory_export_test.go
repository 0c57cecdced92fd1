package vipl

// DeregisterAround is Deregister, during which f is called: the region has ended, and its
// memory is not free.
func (r *Region) DeregisterAround(f func()) error {
	if err := r.deregister(); err != nil {
		return err
	}
	f()
	return r.free()
}
