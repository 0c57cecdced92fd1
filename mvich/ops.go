package mvich

// Op combines two slices of the same length element by element: into gets the
// result. It must be associative and commutative; results on floating-point
// numbers depend on the number of ranks as any sum in another order does.
type Op[T Element] func(into, with []T)

// Sum adds.
func Sum[T Element](into, with []T) {
	for i := range into {
		into[i] += with[i]
	}
}

// Prod multiplies.
func Prod[T Element](into, with []T) {
	for i := range into {
		into[i] *= with[i]
	}
}

// Min takes the smaller.
func Min[T Real](into, with []T) {
	for i := range into {
		into[i] = min(into[i], with[i])
	}
}

// Max takes the larger.
func Max[T Real](into, with []T) {
	for i := range into {
		into[i] = max(into[i], with[i])
	}
}

// And takes the bits that both have.
func And[T Integer](into, with []T) {
	for i := range into {
		into[i] &= with[i]
	}
}

// Or takes the bits that either has.
func Or[T Integer](into, with []T) {
	for i := range into {
		into[i] |= with[i]
	}
}

// Xor takes the bits that one of them has.
func Xor[T Integer](into, with []T) {
	for i := range into {
		into[i] ^= with[i]
	}
}
