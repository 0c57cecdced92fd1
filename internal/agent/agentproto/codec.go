package agentproto

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/xdpnic"
)

// ParseRequest parses a program's message strictly: one value, no unknown field, no number out of range. Only a hello
// may have unknown fields: it may be of another version, which the answer names. Errors match ErrProtocol.
func ParseRequest(b []byte) (Request, error) {
	var r Request
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(&r)
	if err != nil && r.Op == OpHello {
		r = Request{}
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return r, fmt.Errorf("%w: something follows the value", ErrProtocol)
	}
	return r, r.check()
}

// needs checks that a request has the parts that it requires.
var needs = map[Op]func(*Request) bool{
	OpHello:  func(r *Request) bool { return len(r.Versions) > 0 && len(r.Versions) <= 16 },
	OpStatus: nil,
	OpOpen:   func(r *Request) bool { return r.Open != nil && r.Open.sound() },
	OpResume: func(r *Request) bool { return len(r.Token) == TokenLen },
	OpCancel: func(r *Request) bool { return r.Target != 0 },
	OpClose:  nil, OpLink: nil, OpNewVI: nil, OpCounters: nil, OpWatch: nil, OpDiscover: nil,
	OpFreeVI:   func(r *Request) bool { return r.VI != 0 },
	OpEnter:    func(r *Request) bool { return r.VI != 0 && r.Peer.IsValid() },
	OpRemove:   func(r *Request) bool { return r.VI != 0 },
	OpShmLink:  func(r *Request) bool { return r.VI != 0 },
	OpListen:   func(r *Request) bool { return r.Local != nil },
	OpUnlisten: hasHandle,
	OpWait:     func(r *Request) bool { return (r.Local != nil) != (r.Handle != 0) },
	OpRequest:  hasEnds, OpRequestPeer: hasEnds,
	OpPath:        func(r *Request) bool { return r.Local != nil && r.Peer.IsValid() },
	OpAccept:      func(r *Request) bool { return r.Handle != 0 && r.Offer != nil },
	OpEstablished: hasHandle, OpReject: hasHandle, OpConfirm: hasHandle, OpDecline: hasHandle,
}

// sound reports whether there is a name and all enumerations have valid values. device.Open
// checks sizes and numbers, and returns the reason.
func (o *Open) sound() bool {
	return o.Interface != "" && len(o.Interface) < 16 && o.Mode <= xdpnic.ModeGeneric &&
		o.Hugepages >= hugepages.Auto && o.Hugepages <= hugepages.Avoid && o.Steer <= kagent.SteerAll
}

func hasHandle(r *Request) bool { return r.Handle != 0 }
func hasEnds(r *Request) bool   { return r.Local != nil && r.Remote != nil && r.Offer != nil }

func (r *Request) check() error {
	need, known := needs[r.Op]
	switch {
	case !known:
		return fmt.Errorf("%w: no operation %q", ErrProtocol, r.Op)
	case r.ID == 0, need != nil && !need(r):
		return fmt.Errorf("%w: %s lacks something", ErrProtocol, r.Op)
	case r.Timeout < 0:
		return fmt.Errorf("%w: a timeout of %v", ErrProtocol, r.Timeout)
	}
	return nil
}

// ReadRequest reads a message from a program. The kernel closes descriptors that come with it,
// since ReadRequest does not receive them.
func ReadRequest(r io.Reader, buf []byte) (Request, error) {
	n, err := readLength(r, MaxRequest)
	if err != nil {
		return Request{}, err
	}
	if n > len(buf) {
		buf = make([]byte, n)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return Request{}, err
	}
	return ParseRequest(buf[:n])
}

func readLength(r io.Reader, most int) (int, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > uint32(most) {
		return 0, fmt.Errorf("%w: a message of %d bytes, at most %d", ErrProtocol, n, most)
	}
	return int(n), nil
}

// Encode returns the bytes of a message.
func Encode(m any, most int) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > most {
		return nil, fmt.Errorf("%w: a message of %d bytes, at most %d", ErrProtocol, len(b), most)
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...), nil
}

// WriteReply sends the agent's message, with descriptors beside its first byte.
func WriteReply(c *net.UnixConn, r *Reply, files ...*os.File) error {
	b, err := Encode(r, MaxReply)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		_, err = c.Write(b)
		return err
	}
	rights := make([]int, len(files))
	for i, f := range files {
		// The caller keeps the files open until the message is sent.
		if err := fds.With(f, func(fd int) error { rights[i] = fd; return nil }); err != nil {
			return err
		}
	}
	n, _, err := c.WriteMsgUnix(b, unix.UnixRights(rights...), nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// Reader reads the agent's messages.
type Reader struct {
	C     *net.UnixConn
	files []*os.File // of the message that is being read
	cut   bool       // some of its descriptors are missing
}

// Read is io.Reader's, and keeps descriptors that come with the bytes.
func (r *Reader) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*MaxFiles))
	n, oobn, flags, _, err := r.C.ReadMsgUnix(b, oob)
	for _, fd := range fds.Received(oob[:oobn]) {
		r.files = append(r.files, os.NewFile(uintptr(fd), "agent"))
	}
	r.cut = r.cut || flags&unix.MSG_CTRUNC != 0
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case len(r.files) > MaxFiles:
		err = fmt.Errorf("%w: %d descriptors with a message, at most %d", ErrProtocol, len(r.files), MaxFiles)
	}
	return n, err
}

// errCut: see Reader.ReadReply.
var errCut = fmt.Errorf("not all descriptors of the agent's answer have come: %w (raise the limit of open files), "+
	"or the agent sends more than %d", unix.EMFILE, MaxFiles)

// ReadReply reads one message. The files are the caller's, also after an error. If the kernel
// could not install all descriptors of a message because this process has too many, the result is
// an error reply to the same request, without files.
func (r *Reader) ReadReply() (reply Reply, files []*os.File, err error) {
	reply, err = parseReply(r)
	files, cut := r.files, r.cut
	r.files, r.cut = nil, false
	if err == nil && cut {
		fds.CloseFiles(files...)
		return Reply{ID: reply.ID, Error: NewError(errCut)}, nil, nil
	}
	return reply, files, err
}

// parseReply reads an agent's message, without the descriptors.
func parseReply(r io.Reader) (reply Reply, err error) {
	n, err := readLength(r, MaxReply)
	if err != nil {
		return reply, err
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return reply, err
	}
	err = json.Unmarshal(b, &reply)
	return reply, err
}
