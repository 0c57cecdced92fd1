// Package undo changes settings of the machine so that they can be put back,
// also after a crash, also by another process.
//
//	Apply   look, write down what was and what will be, change; look again, and
//	        write down what it has become
//	Undo    newest first: what is still as Apply left it goes back; what
//	        somebody else has changed since stays, and is named
//
// The list is a file of its own for each purpose ("doctor", "tune"), replaced as
// a whole before each change, so that there is no moment in which a setting is
// changed and not written down. It lies on /run: a reboot restores the settings
// and loses the list.
//
// One process at a time has a list open; a lock on the file keeps the others
// waiting. Setting something needs the rights that the setting needs.
package undo
