// Package agentproto is the protocol between programs and the agent daemon.
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
// A request is parsed strictly: an unknown field, a second value or a number out of range ends the
// connection. Only a hello may have unknown fields, since it may be of another version. A program that
// does not read its answers ends the connection, too. The end of the connection is the end of the
// program's NIC, unless the agent died: the program then rejoins the next agent with its token.
package agentproto
