package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Lengths that a Server tells its ranks, in bytes.
const (
	maxName  = 64
	maxKey   = 256
	maxValue = 4096
	maxLine  = 2 * maxValue
	maxKeys  = 1 << 14 // of all ranks
)

// serverSpace is the name of the only key-value space of a Server.
const serverSpace = "job"

// processMapping tells MPI implementations which ranks share a host, by a key
// that MPICH looks for: here each rank is on a host of its own, so that they talk
// by the network and not by shared memory.
const processMapping = "PMI_process_mapping"

// Server is the launcher's side of PMI-1 for the ranks of one job. All methods may
// be called concurrently.
type Server struct {
	size int

	mu     sync.Mutex
	moved  *sync.Cond // a fence is complete, or the job is over
	values map[string]string
	inside int // ranks in the fence
	turn   int // fences that are complete
	over   error
}

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

// errOver ends the fences of a job of which a rank is gone.
var errOver = errors.New("pmi: a rank of the job has ended that others wait for")

// NewServer makes a server for a job of size ranks.
func NewServer(size int) *Server {
	s := &Server{size: size, values: map[string]string{
		processMapping: fmt.Sprintf("(vector,(0,%d,1))", size),
	}}
	s.moved = sync.NewCond(&s.mu)
	return s
}

// Serve obeys one rank on its connection until that ends. began: it has said that
// it is a rank; done: it has said that it is ready. An *AbortError: it has asked
// for the end of the job. ErrAnswer: it says what it should not.
func (s *Server) Serve(rank int, conn io.ReadWriter) (began, done bool, err error) {
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 1024), maxLine)
	for lines.Scan() {
		words := wordsOf(lines.Text())
		if words["cmd"] == "abort" {
			code, err := strconv.Atoi(words["exitcode"])
			if err != nil {
				code = 1
			}
			return began, done, &AbortError{Rank: rank, Code: code, Message: words["error_msg"]}
		}
		answer, err := s.answer(rank, words)
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

// End ends the fences that ranks are in, which the job's end keeps from being
// complete.
func (s *Server) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = errOver
	s.moved.Broadcast()
}

func (s *Server) answer(rank int, words map[string]string) (string, error) {
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
		return fmt.Sprintf("cmd=universe_size rc=0 size=%d", s.size), nil
	case "get_my_kvsname":
		return "cmd=my_kvsname rc=0 kvsname=" + serverSpace, nil
	case "put":
		return s.put(words), nil
	case "get":
		return s.get(words), nil
	case "barrier_in":
		if err := s.fence(); err != nil {
			return "", err
		}
		return "cmd=barrier_out rc=0", nil
	case "finalize":
		return "cmd=finalize_ack rc=0", nil
	}
	return "", fmt.Errorf("%w: rank %d asks for %q, which is not offered here", ErrAnswer, rank, words["cmd"])
}

func (s *Server) put(words map[string]string) string {
	key, value := words["key"], words["value"]
	if words["kvsname"] != serverSpace || key == "" || len(key) >= maxKey || len(value) >= maxValue {
		return "cmd=put_result rc=-1 msg=wrong_name_or_length"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.values[key]; taken { // as Hydra: no rank changes what another has said of itself
		return "cmd=put_result rc=-1 msg=duplicate_key"
	}
	if len(s.values) >= maxKeys {
		return "cmd=put_result rc=-1 msg=no_room"
	}
	s.values[key] = value
	return "cmd=put_result rc=0 msg=success"
}

func (s *Server) get(words map[string]string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.values[words["key"]]
	if !ok || words["kvsname"] != serverSpace {
		return "cmd=get_result rc=-1 msg=key_not_found"
	}
	return "cmd=get_result rc=0 msg=success value=" + value
}

func (s *Server) fence() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn := s.turn
	if s.inside++; s.inside == s.size {
		s.inside = 0
		s.turn++
		s.moved.Broadcast()
	}
	for s.turn == turn {
		if s.over != nil {
			return s.over
		}
		s.moved.Wait()
	}
	return nil
}

// wordsOf cuts a line into its words of the form name=value.
func wordsOf(line string) map[string]string {
	words := make(map[string]string)
	for word := range strings.FieldsSeq(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			words[name] = value
		}
	}
	return words
}
