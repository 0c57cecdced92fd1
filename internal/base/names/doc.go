// Package names finds the addresses of hosts by name, and back: the name
// service of a NIC handle.
//
//	name or address
//	    |
//	    v  not there        not there
//	file of names ---> hosts file ---> the system's resolver (DNS)
//	    |                  |                  |
//	    +------------------+------------------+--> the first that knows it answers
//
// The file of names is our own: the format of hosts(5), with a discriminator
// where a line has one ([ParseNames]). A hosts file ([ParseHosts]) is read as
// the C library reads it: what is no entry is passed over.
//
// # Files
//
// A [Resolver] looks at its files at every lookup (one stat each) and reads
// one again when it is not the one that it knows: other device, inode, size,
// modification or change time. A file that changed less than two seconds before
// it was read is read again, because a second change could have the same time. If
// a file becomes invalid, lookups that reach it fail, with file and line in the
// error, until it is valid again: an old address could belong to another host by
// now.
//
// What a file may hold is limited: see [MaxBytes].
// Only regular files are read; /dev/null stands for an empty one.
//
// # Concurrency
//
// A Resolver may be used from any goroutine. It has none of its own; package
// net starts some for a question to DNS, which end with the lookup's context.
package names
