// Package secure authenticates and encrypts a connection with a pre-shared key. It
// has the handshake, which travels in the connection messages, and the sealing of
// frames. Its only system call is for random numbers; it uses no clock and knows
// neither VIs nor sockets.
//
//	requester                                       acceptor
//	PSK.Request: share, proof ------ Request -----> PSK.Check
//	Requester.Finish <-------------- Accept ------- Offered.Accept: share, proof
//	    proof ---------------------- Confirm -----> Acceptance.Confirm
//	Session                                         Session
//
// A share is an ephemeral X25519 public key and a proof. Each proof is a MAC over the
// transcript so far: the shares, and what the caller binds to the handshake, which is
// every part of the messages that the connection depends on, and both addresses. The
// key of the request's proof is the pre-shared key. The keys of the other two are
// derived from the pre-shared key and the result of X25519 (as in Noise NNpsk0). So
//
//   - only an owner of the pre-shared key gets a Session;
//   - an attacker who learns the pre-shared key later cannot read recorded frames;
//   - as long as the pre-shared key is secret, a quantum computer does not help.
//
// A [Session] seals frames with AES-256-GCM. The nonce is derived from the packet
// number, which is never used twice: a retransmission gets a new number. Each
// direction has its own keys. The sender changes its key after a number of frames or
// bytes ([Limits]), without negotiation. The new key is derived from the old one; the
// old one cannot be derived from the new one. Each packet carries the number of its
// key, the epoch, in clear. A receiver opens each packet number once ([Session.Open]).
//
// PSK may be used concurrently. One goroutine at a time may use any other value.
package secure
