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
// The file of names has the format of hosts(5), with an optional discriminator in each line ([ParseNames]). A hosts
// file ([ParseHosts]) is read as the C library reads it: lines that are no entries are skipped.
//
// # Files
//
// A [Resolver] checks its files at every lookup (one stat each). It reads a file again if it has changed: another
// device, inode, size, modification or change time. A file that changed less than two seconds before it was read is
// read again, because a second change could have the same time. If a file becomes invalid, lookups that need it
// fail until it is valid again, with file and line in the error: an old address could belong to another host by
// now.
//
// The size of a file is limited: see [MaxBytes]. Only regular files are read; /dev/null stands for an empty one.
//
// # Concurrency
//
// A Resolver may be used from any goroutine. It starts none itself; package net starts some for a DNS query, which
// end with the lookup's context.
package names
