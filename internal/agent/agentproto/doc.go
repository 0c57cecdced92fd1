// Package agentproto is what programs and the agent daemon say to each other.
//
// A connection is a Unix stream socket. Each message is a length of 4 bytes, big
// endian, and that many bytes of JSON; a program's message has at most MaxRequest
// of them. Descriptors come beside the answer to an open, and never from the
// program.
//
//	program                                 agent
//	   |--- hello: versions that I speak ---->|   within 2 s
//	   |<-- the one to speak, who I am -------|
//	   |--- open, resume or status ---------->|
//	   |<-- token, queue, socket + memory ----|
//	   |--- request 7: wait ----------------->|   any number at a time,
//	   |--- request 8: path ----------------->|   answered in any order
//	   |<-- reply 8 --------------------------|
//	   |--- cancel 7 ------------------------>|
//	   |<-- reply 7: cancelled ---------------|
//	   |--- watch --------------------------->|
//	   |<-- the interface as it is -----------|   now
//	   |--- watch --------------------------->|   that is taken; the next, please
//	   |<-- the interface as it is -----------|   after a change
//
// A request is read strictly: a field that is not known, a second value, a number
// that is out of range end the connection. So does a program that does not take
// its answers. The end of the connection is the end of the program's NIC, unless
// the agent died: then the program comes back to the next one with its token.
package agentproto
