// Package bigstack gives a goroutine room for what the program's signal handlers
// need. A handler that was set without SA_ONSTACK runs on the stack that its
// thread happens to be on; a thread of C that has called Go is on a goroutine's
// stack, which begins with 2 KB.
package bigstack

// Reserve makes the goroutine's stack large enough for 128 KB more than its
// caller uses. After the first time it costs two instructions.
func Reserve()
