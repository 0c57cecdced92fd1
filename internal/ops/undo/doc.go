// Package undo changes settings of the machine so that they can be put back, also after
// a crash, also by another process.
//
//	Apply   read the value, record it and the wanted one, change it; read it
//	        again, and record what it has become
//	Undo    newest first: restore what is still as Apply left it; keep and name
//	        what another program has changed since
//
// Each purpose ("doctor", "tune") has a list in a file of its own. The file is replaced
// as a whole before each change, so that no change is ever unrecorded. It lies on /run:
// a reboot restores the settings and loses the list. A list that has outlived a reboot is
// dropped.
//
// A lock on the file lets one process at a time open a list; others wait. Changing a
// setting needs the privileges that the setting needs.
package undo
