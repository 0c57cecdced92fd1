//go:build !asavie

package bench

// asavieTransports are built with the tag asavie.
var asavieTransports []transport
