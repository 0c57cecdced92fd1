// Command libvipl is libvipl.so: the VI Provider Library for programs in C.
//
//	program in C      VipSendDone   VipPostSend ...           vipl.h
//	------------------------|------------|--------------------------
//	poll.c            looks at words  calls.c  checks arguments
//	                  of the engine      |     start.c  starts Go, in and out
//	------------------------|------------|--------------------------
//	table.go          handle -> object, one Go file a kind of object
//	                                     |
//	                              package vipl
//
// Descriptors and data are used where the program has them; a descriptor of C is
// one of package vipl, byte for byte. A handle is a number that says slot,
// generation and kind (abi.h), so that a wrong one is a return code.
//
// The Makefile builds the library from a C archive of this package, such that the
// Go runtime starts with the first VipOpenNic. go build -buildmode=c-shared gives
// one that works, too, but starts the runtime when it is loaded, and its threads do not
// block SIGCHLD, SIGPROF and SIGRTMIN.
//
// docs/libvipl.md is the user's guide.
package main

// main is for the linker: a library has none.
func main() {}
