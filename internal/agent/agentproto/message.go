package agentproto

import (
	"net/netip"
	"time"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// Version is the version of the protocol that this package speaks, and of what programs share by it: the memory of
// shared-memory links, and that of a queue.
const Version = 7

// Bounds of a message in bytes, and of its parts.
const (
	MaxRequest = 16 << 10
	MaxReply   = 8 << 20
	TokenLen   = 32
	MaxFiles   = 3 + xdpnic.MaxExtraQueues
)

// HelloID is the ID of a program's first request. An agent that refuses a connection answers with
// it before it has read the request.
const HelloID = 1

// Op is the operation of a request. Except for hello, open, resume, status and cancel, operations are the
// methods of kagent.Agent, kagent.Listener, kagent.Incoming and kagent.Answer.
type Op string

// The operations, with the fields that they use besides ID.
const (
	OpHello  Op = "hello"  // Versions
	OpStatus Op = "status" // ; Reply.Status
	OpOpen   Op = "open"   // Open; Reply.Opened, with socket, memory and sign of life
	OpResume Op = "resume" // Token
	OpClose  Op = "close"  // ends the session; answered after the cleanup
	OpCancel Op = "cancel" // Target: the request; no reply of its own

	OpLink        Op = "link"     // ; Reply.Link
	OpNewVI       Op = "new-vi"   // ; Reply.VI
	OpFreeVI      Op = "free-vi"  // VI
	OpEnter       Op = "enter"    // VI, Key, Peer
	OpRemove      Op = "remove"   // VI
	OpListen      Op = "listen"   // Local; Reply.Handle
	OpUnlisten    Op = "unlisten" // Handle
	OpWait        Op = "wait"     // Local, or Handle of a listener; Timeout; Reply.Incoming
	OpRequest     Op = "request"  // Local, Remote, Offer, Timeout; Reply.Answer
	OpRequestPeer Op = "peer"     // Local, Remote, Offer, Timeout; Reply.Answer or Incoming
	OpDiscover    Op = "discover" // Timeout; Reply.Neighbors
	OpPath        Op = "path"     // Local.Host, Peer, Timeout; Reply.Path
	OpCounters    Op = "counters" // ; Reply.Counters
	OpWatch       Op = "watch"    // no reply of its own: one message with Link, at once the first time, then after the next change

	OpShmLink Op = "shm_link" // VI; Reply.ShmLink, with memory and two bells

	OpAccept      Op = "accept"      // Handle, Offer, Timeout
	OpEstablished Op = "established" // Handle; no reply
	OpReject      Op = "reject"      // Handle, Reason
	OpConfirm     Op = "confirm"     // Handle, and Proof where there was a handshake
	OpDecline     Op = "decline"     // Handle, Reason; no reply
)

// Request is a message of a program.
type Request struct {
	ID       uint64          `json:"id"` // not 0, and not of a request that is under way
	Op       Op              `json:"op"`
	Versions []int           `json:"versions,omitempty"`
	Open     *Open           `json:"open,omitempty"`
	Token    []byte          `json:"token,omitempty"`
	Target   uint64          `json:"target,omitempty"`
	VI       uint32          `json:"vi,omitempty"`
	Key      uint64          `json:"key,omitempty"`
	Peer     netip.Addr      `json:"peer,omitzero"`
	Local    *kagent.Address `json:"local,omitempty"`
	Remote   *kagent.Address `json:"remote,omitempty"`
	Offer    *kagent.Offer   `json:"offer,omitempty"`
	Handle   uint64          `json:"handle,omitempty"`
	Reason   wire.CMReason   `json:"reason,omitempty"`
	Proof    []byte          `json:"proof,omitempty"`
	Timeout  time.Duration   `json:"timeout,omitempty"` // ns; 0: no limit
}

// Open has the fields of kagent.Config that a program may choose.
type Open struct {
	Interface    string           `json:"interface"`
	Queue        int              `json:"queue"`
	Mode         xdpnic.Mode      `json:"mode,omitempty"`
	RequireMode  bool             `json:"require_mode,omitempty"`
	ArenaBytes   int              `json:"arena_bytes,omitempty"`
	Hugepages    hugepages.Policy `json:"hugepages,omitempty"`
	ChunkSize    int              `json:"chunk_size,omitempty"`
	RxChunks     int              `json:"rx_chunks,omitempty"`
	TxChunks     int              `json:"tx_chunks,omitempty"`
	SingleBuffer bool             `json:"single_buffer,omitempty"`
	Steer        kagent.Steering  `json:"steer,omitempty"`
	// Alone: the program takes no queue that it would have to share with another process, since it has one of the
	// interface that its handles can share. Sealed: it requires a pre-shared key.
	Alone  bool `json:"alone,omitempty"`
	Sealed bool `json:"sealed,omitempty"`
}

// Reply is a message of the agent.
type Reply struct {
	ID        uint64            `json:"id"` // of the request; 0: an Ended, or the Link of a watch
	Error     *Error            `json:"error,omitempty"`
	Welcome   *Welcome          `json:"welcome,omitempty"`
	Opened    *Opened           `json:"opened,omitempty"`
	Status    *kagent.Status    `json:"status,omitempty"`
	Link      *kagent.Link      `json:"link,omitempty"`
	VI        uint32            `json:"vi,omitempty"`
	Handle    uint64            `json:"handle,omitempty"`
	Incoming  *Exchange         `json:"incoming,omitempty"`
	Answer    *Exchange         `json:"answer,omitempty"`
	Neighbors []kagent.Neighbor `json:"neighbors,omitempty"`
	Path      *kagent.Path      `json:"path,omitempty"`
	Counters  *bpf.Counters     `json:"counters,omitempty"`
	ShmLink   *ShmLink          `json:"shm_link,omitempty"`
	Ended     uint64            `json:"ended,omitempty"` // an Incoming that ended without connection; Error has the cause
}

// Welcome is the answer to hello.
type Welcome struct {
	Version int       `json:"version"`
	PID     int       `json:"pid"`
	Netns   [2]uint64 `json:"netns"` // device and inode of the agent's network namespace
}

// Opened is the answer to open. The socket, the memory, the writing end of the sign of life, and the sockets of
// Config.ExtraQueues are passed with it. If Queue's Config says that the program has joined the first one of a queue (Sharing.Partition), the memory
// is the UMEM, and its registered memory is its own affair.
type Opened struct {
	Token []byte              `json:"token"`
	Queue kagent.QueueMessage `json:"queue"`
	Info  kagent.InfoMessage  `json:"info"`
}

// Exchange is a kagent.Incoming or a kagent.Answer, known by its handle.
type Exchange struct {
	Handle uint64         `json:"handle"`
	Local  kagent.Address `json:"local"`
	Remote kagent.Address `json:"remote"`
	Offer  kagent.Offer   `json:"offer"`
}

// ShmLink is a kagent.ShmLinkEnd. Its files are passed with the message.
type ShmLink struct {
	ID   uint64 `json:"id"`
	Side int    `json:"side"`
}
