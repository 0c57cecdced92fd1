package pmi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Lengths that a Server announces to its ranks, in bytes.
const (
	maxName  = 64
	maxKey   = 256
	maxValue = 4096
	maxLine  = 2 * maxValue
	maxKeys  = 1 << 14 // of all ranks
)

// serverSpace is the name of the only key-value space of a Server.
const serverSpace = "job"

// processMapping is a key that MPICH reads to learn which ranks share a host. Here each rank counts as alone on a
// host, so that ranks use the network and not shared memory.
const processMapping = "PMI_process_mapping"

// Job is what the ranks of a job share through their launcher: values and fences. All methods may be called
// concurrently.
type Job struct {
	size int

	mu     sync.Mutex
	moved  *sync.Cond // a fence is complete, or the job is over
	values map[string]string
	inside int   // ranks in the fence
	turn   int   // complete fences
	over   error // why no later fence completes
}

// NewJob makes the job of size ranks.
func NewJob(size int) *Job {
	j := &Job{size: size, values: make(map[string]string)}
	j.moved = sync.NewCond(&j.mu)
	return j
}

// Size is the number of ranks.
func (j *Job) Size() int { return j.size }

// Put publishes a value. ErrValue: the key has one, or there is no room: no rank replaces the value of another.
func (j *Job) Put(key, value string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, taken := j.values[key]; taken || len(j.values) >= maxKeys {
		return fmt.Errorf("%w: %q has a value, or %d keys have", ErrValue, key, maxKeys)
	}
	j.values[key] = value
	return nil
}

// Get returns a value that a rank has put.
func (j *Job) Get(key string) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	value, ok := j.values[key]
	if !ok {
		return "", fmt.Errorf("pmi: no rank has put %q", key)
	}
	return value, nil
}

// Fence waits until all ranks have called it, or End has been.
func (j *Job) Fence() error { return j.fence(context.Background()) }

// fence is Fence that also stops waiting at the end of ctx.
func (j *Job) fence(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		j.mu.Lock() // a broadcast between the check and Wait would be lost
		defer j.mu.Unlock()
		j.moved.Broadcast()
	})()
	j.mu.Lock()
	defer j.mu.Unlock()
	turn := j.turn
	if j.inside++; j.inside == j.size {
		j.inside = 0
		j.turn++
		j.moved.Broadcast()
	}
	for j.turn == turn {
		if err := ctx.Err(); err != nil {
			return err
		}
		if j.over != nil {
			return j.over
		}
		j.moved.Wait()
	}
	return nil
}

// End ends the fences that are not complete, and all later ones, with an error.
func (j *Job) End(why error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = errors.Join(j.over, why)
	j.moved.Broadcast()
}

// Server is the launcher's side of PMI-1 for the ranks of one job. All methods may be called concurrently.
type Server struct{ job *Job }

// AbortError says that a rank has asked for the end of the job.
type AbortError struct {
	Rank, Code int
	Message    string // may be empty
}

// Error names the rank and the exit code.
func (e *AbortError) Error() string {
	s := fmt.Sprintf("pmi: rank %d has aborted the job with code %d", e.Rank, e.Code)
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// errOver ends the fences of a job that has lost a rank.
var errOver = errors.New("pmi: a rank of the job has ended that others wait for")

// NewServer makes a server for a job of size ranks.
func NewServer(size int) *Server {
	s := &Server{NewJob(size)}
	s.job.values[processMapping] = fmt.Sprintf("(vector,(0,%d,1))", size)
	return s
}

// Serve answers one rank on its connection until that ends. The caller ends ctx when the rank's process has ended: Serve
// then still reads what the rank has sent, but returns at a fence that is not complete. began: the rank has initialized;
// done: it has finalized. *AbortError: the rank has aborted the job. ErrAnswer: a protocol error of the rank.
func (s *Server) Serve(ctx context.Context, rank int, conn io.ReadWriter) (began, done bool, err error) {
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 1024), maxLine)
	for lines.Scan() {
		line, message, _ := strings.Cut(lines.Text(), " error_msg=") // of an abort: text with spaces, to the line's end
		words := wordsOf(line)
		if words["cmd"] == "abort" {
			code, err := strconv.Atoi(words["exitcode"])
			if err != nil {
				code = 1
			}
			return began, done, &AbortError{Rank: rank, Code: code, Message: message}
		}
		answer, err := s.answer(ctx, rank, words)
		if err != nil && err == ctx.Err() {
			break // it has ended in a fence, and its exit says why
		}
		if err != nil {
			return began, done, err
		}
		began = began || words["cmd"] == "init"
		done = done || words["cmd"] == "finalize"
		if _, err := io.WriteString(conn, answer+"\n"); err != nil {
			break // it is gone, and its exit says why
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) { // it would wait for an answer
		return began, done, fmt.Errorf("%w: rank %d says more than %d bytes in a line", ErrAnswer, rank, maxLine)
	}
	return began, done, nil
}

// End ends the fences that ranks wait in: a rank has ended, so they cannot complete. Serve calls it when a rank finalizes.
func (s *Server) End() { s.job.End(errOver) }

func (s *Server) answer(ctx context.Context, rank int, words map[string]string) (string, error) {
	switch words["cmd"] {
	case "init":
		if words["pmi_version"] != "1" {
			return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1", nil
		}
		return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0", nil
	case "get_maxes":
		return fmt.Sprintf("cmd=maxes rc=0 kvsname_max=%d keylen_max=%d vallen_max=%d", maxName, maxKey, maxValue), nil
	case "get_appnum":
		return "cmd=appnum rc=0 appnum=0", nil
	case "get_universe_size":
		return fmt.Sprintf("cmd=universe_size rc=0 size=%d", s.job.size), nil
	case "get_my_kvsname":
		return "cmd=my_kvsname rc=0 kvsname=" + serverSpace, nil
	case "put":
		return s.put(words), nil
	case "get":
		return s.get(words), nil
	case "barrier_in":
		if err := s.job.fence(ctx); err != nil {
			return "", err
		}
		return "cmd=barrier_out rc=0", nil
	case "finalize":
		s.End() // it enters no fence any more, though its process may live on
		return "cmd=finalize_ack rc=0", nil
	}
	return "", fmt.Errorf("%w: rank %d asks for %q, which is not offered here", ErrAnswer, rank, words["cmd"])
}

func (s *Server) put(words map[string]string) string {
	key, value := words["key"], words["value"]
	if words["kvsname"] != serverSpace || key == "" || len(key) >= maxKey || len(value) >= maxValue {
		return "cmd=put_result rc=-1 msg=wrong_name_or_length"
	}
	if s.job.Put(key, value) != nil {
		return "cmd=put_result rc=-1 msg=duplicate_key_or_no_room"
	}
	return "cmd=put_result rc=0 msg=success"
}

func (s *Server) get(words map[string]string) string {
	value, err := s.job.Get(words["key"])
	if err != nil || words["kvsname"] != serverSpace {
		return "cmd=get_result rc=-1 msg=key_not_found"
	}
	return "cmd=get_result rc=0 msg=success value=" + value
}

// wordsOf cuts a line into its words of the form name=value. Other white space than spaces is part of a value.
func wordsOf(line string) map[string]string {
	words := make(map[string]string)
	for word := range strings.SplitSeq(strings.TrimRight(line, "\r\n"), " ") {
		if name, value, ok := strings.Cut(word, "="); ok {
			words[name] = value
		}
	}
	return words
}
