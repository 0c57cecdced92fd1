package vipl

// CopyAscending is how RDMA writes reach memory.
var CopyAscending = copyAscending
