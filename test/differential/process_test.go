package differential

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"policy.example.io/policy-apiserver/test/differential/peer"
)

// process is Gatekeeper's engine as it is released, as a child of the tests.
type process struct {
	mutex   sync.Mutex
	in      io.WriteCloser
	answers *json.Decoder
}

var released *process

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runTests builds the process, runs the tests beside it and waits for its end.
func runTests(m *testing.M) (code int, err error) {
	directory, err := os.MkdirTemp("", "differential")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(directory)
	binary := filepath.Join(directory, "process")
	build := exec.Command("go", "build", "-o", binary, "./process")
	build.Dir, build.Stderr = "peer", os.Stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("build peer/process: %w", err)
	}
	child := exec.Command(binary)
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := child.Start(); err != nil {
		return 0, fmt.Errorf("start peer/process: %w", err)
	}
	released = &process{in: in, answers: json.NewDecoder(out)}
	code = m.Run()
	in.Close()
	return code, child.Wait()
}

// ask is peer.Evaluate, answered by the process.
func (p *process) ask(_ context.Context, q *peer.Question) (*peer.Answer, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if err := json.NewEncoder(p.in).Encode(q); err != nil {
		return nil, fmt.Errorf("ask peer/process: %w", err)
	}
	answer := &peer.Answer{}
	if err := p.answers.Decode(answer); err != nil {
		return nil, fmt.Errorf("answer of peer/process: %w", err)
	}
	return answer, nil
}
