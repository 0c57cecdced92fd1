// Package secure authenticates and encrypts a connection from a pre-shared key:
// the handshake that both sides make with their connection messages, and the
// sealing of frames. It is pure: no system call but for random numbers, no clock,
// and it knows neither VIs nor sockets.
//
//	requester                                       acceptor
//	PSK.Request: share, proof ------ Request -----> PSK.Check
//	Requester.Finish <-------------- Accept ------- Offered.Accept: share, proof
//	    proof ---------------------- Confirm -----> Acceptance.Confirm
//	Session                                         Session
//
// A share is an ephemeral X25519 public key and a proof. Each proof is a MAC over all
// that was said until then: the shares, and what the caller binds to the handshake,
// which is everything in the messages that the connection rests on, and both
// addresses. The request's proof is by the pre-shared key; the other two are by keys
// derived from both the pre-shared key and the result of X25519 (as in Noise NNpsk0).
// So
//
//   - only somebody who knows the pre-shared key gets as far as a Session;
//   - somebody who learns the pre-shared key later can read nothing that was recorded;
//   - as long as the pre-shared key is secret, no quantum computer helps.
//
// A [Session] seals frames with AES-256-GCM. The nonce is made of the packet's
// number, which is never used again: what is sent again gets a new number. Each
// direction has keys of its own. The sender changes its key after a number of frames
// or bytes, without asking ([Limits]); the new key is derived from the old one, and
// not the other way. The number of the key in use, its epoch, goes in clear with each
// packet. A receiver opens each packet number once ([Session.Open]).
//
// PSK may be used concurrently; everything else belongs to one goroutine at a time.
package secure
