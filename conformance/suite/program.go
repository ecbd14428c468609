package suite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Program is a running program peer: a line to write calls to and read replies from.
type Program interface {
	io.Reader
	io.Writer
	// Close ends the program and waits for it. It may be called more than once.
	Close() error
}

// Starter starts a program peer that talks to the target at the given base URL, with the given token; "" means none.
type Starter func(ctx context.Context, target, token string) (Program, error)

// Command returns a Starter for an executable: the command line is split at white space and run without a shell.
func Command(line string) Starter {
	return func(ctx context.Context, target, token string) (Program, error) {
		words := strings.Fields(line)
		if len(words) == 0 {
			return nil, errors.New("the peer's command line is empty")
		}
		command := exec.CommandContext(ctx, words[0], words[1:]...) //nolint:gosec // the tester's own command
		command.Env = append(os.Environ(), TargetVariable+"="+target, TokenVariable+"="+token)
		command.Stderr = os.Stderr
		// A peer that ignores the end of its input is killed after this long.
		command.WaitDelay = 5 * time.Second
		stdin, err := command.StdinPipe()
		if err != nil {
			return nil, fmt.Errorf("start peer: %w", err)
		}
		stdout, err := command.StdoutPipe()
		if err != nil {
			return nil, fmt.Errorf("start peer: %w", err)
		}
		if err := command.Start(); err != nil {
			return nil, fmt.Errorf("start peer: %w", err)
		}
		p := &process{Reader: stdout, WriteCloser: stdin}
		p.wait = sync.OnceValue(func() error {
			timer := time.AfterFunc(command.WaitDelay, func() { _ = command.Process.Kill() })
			defer timer.Stop()
			return command.Wait()
		})
		return p, nil
	}
}

type process struct {
	io.Reader
	io.WriteCloser
	wait func() error
}

func (p *process) Close() error {
	_ = p.WriteCloser.Close()
	if err := p.wait(); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	return nil
}

// InProcess returns a Starter that runs serve in a goroutine of this process, over pipes. It serves the adapters
// that are built into the program; they speak the same protocol as any other.
func InProcess(serve func(ctx context.Context, target, token string, in io.Reader, out io.Writer) error) Starter {
	return func(ctx context.Context, target, token string) (Program, error) {
		callsIn, callsOut := io.Pipe()
		repliesIn, repliesOut := io.Pipe()
		done := make(chan error, 1)
		go func() {
			err := serve(ctx, target, token, callsIn, repliesOut)
			_ = repliesOut.CloseWithError(errors.Join(io.EOF, err))
			_ = callsIn.CloseWithError(io.ErrClosedPipe)
			done <- err
		}()
		return &process{
			Reader: repliesIn, WriteCloser: callsOut,
			wait: sync.OnceValue(func() error {
				_ = repliesIn.Close()
				return <-done
			}),
		}, nil
	}
}

// programPeer is a [Peer] over a [Program].
type programPeer struct {
	hello   Hello
	program Program

	writeMu sync.Mutex

	mu      sync.Mutex // guards what follows
	next    int64
	waiting map[int64]chan Reply
	ended   error // why no more replies come; nil while they may
}

// unsupportedError says that the peer does not speak an operation.
type unsupportedError struct{ peer, operation string }

func (e *unsupportedError) Error() string {
	return fmt.Sprintf("%s does not offer the operation %s", e.peer, e.operation)
}

// helloTimeout bounds the start of a program peer; a library in an interpreted language may need seconds.
const helloTimeout = 30 * time.Second

// connect reads the program's hello and starts reading its replies.
func connect(ctx context.Context, program Program) (*programPeer, error) {
	lines := bufio.NewReaderSize(program, 1<<16)
	type first struct {
		hello Hello
		err   error
	}
	greeted := make(chan first, 1)
	go func() {
		var f first
		line, err := lines.ReadBytes('\n')
		if err != nil {
			f.err = fmt.Errorf("read the peer's hello: %w", err)
		} else if err := json.Unmarshal(line, &f.hello); err != nil {
			f.err = fmt.Errorf("the peer's hello is not JSON: %w", err)
		}
		greeted <- f
	}()
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var f first
	select {
	case f = <-greeted:
	case <-ctx.Done():
		f.err = fmt.Errorf("wait for the peer's hello: %w", ctx.Err())
	}
	if f.err == nil && f.hello.Protocol != ProtocolVersion {
		f.err = fmt.Errorf("the peer speaks protocol %d, this suite speaks %d", f.hello.Protocol, ProtocolVersion)
	}
	if f.err == nil && f.hello.Name == "" {
		f.err = errors.New("the peer's hello has no name")
	}
	if f.err != nil {
		return nil, errors.Join(f.err, program.Close())
	}
	peer := &programPeer{hello: f.hello, program: program, waiting: map[int64]chan Reply{}}
	go peer.read(lines)
	return peer, nil
}

func (p *programPeer) read(lines *bufio.Reader) {
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var reply Reply
			if problem := json.Unmarshal(line, &reply); problem != nil {
				p.end(fmt.Errorf("the peer wrote a line that is no reply: %w: %s", problem, excerpt(line)))
				return
			}
			p.mu.Lock()
			answer, ok := p.waiting[reply.ID]
			delete(p.waiting, reply.ID)
			p.mu.Unlock()
			if ok {
				answer <- reply
			}
		}
		if err != nil {
			p.end(fmt.Errorf("the peer ended: %w", err))
			return
		}
	}
}

func (p *programPeer) end(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = reason
	for id, answer := range p.waiting {
		delete(p.waiting, id)
		close(answer)
	}
}

// Call implements [Peer].
func (p *programPeer) Call(ctx context.Context, operationID string, args Args) (Outcome, error) {
	if !slices.Contains(p.hello.Operations, operationID) {
		return Outcome{}, &unsupportedError{peer: p.hello.Name, operation: operationID}
	}
	answer := make(chan Reply, 1)
	p.mu.Lock()
	if p.ended != nil {
		p.mu.Unlock()
		return Outcome{}, p.ended
	}
	p.next++
	id := p.next
	p.waiting[id] = answer
	p.mu.Unlock()

	if err := p.write(newCall(id, operationID, args)); err != nil {
		return Outcome{}, err
	}
	select {
	case reply, ok := <-answer:
		if !ok {
			p.mu.Lock()
			defer p.mu.Unlock()
			return Outcome{}, p.ended
		}
		return reply.outcome()
	case <-ctx.Done():
		p.mu.Lock()
		delete(p.waiting, id)
		p.mu.Unlock()
		return Outcome{}, fmt.Errorf("wait for the peer's reply to %s: %w", operationID, ctx.Err())
	}
}

func (p *programPeer) write(call Call) error {
	line, err := json.Marshal(call)
	if err != nil {
		return fmt.Errorf("encode call: %w", err)
	}
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	if _, err := p.program.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write to the peer: %w", err)
	}
	return nil
}

func (r Reply) outcome() (Outcome, error) {
	if r.Error != "" {
		return Outcome{}, errors.New(r.Error)
	}
	if r.Status == 0 {
		return Outcome{}, errors.New("the peer's reply has neither status nor error")
	}
	outcome := Outcome{Status: r.Status}
	if r.Body != nil {
		outcome.Body = []byte(*r.Body)
	}
	return outcome, nil
}

// ServeCalls is the program's side of the protocol for adapters written in Go: it writes the hello, reads calls
// until in ends, runs each in its own goroutine, and returns when all are answered.
func ServeCalls(ctx context.Context, hello Hello, peer Peer, in io.Reader, out io.Writer) error {
	hello.Protocol = ProtocolVersion
	encoder := json.NewEncoder(out)
	if err := encoder.Encode(hello); err != nil {
		return fmt.Errorf("write hello: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		running sync.WaitGroup
		writeMu sync.Mutex
		broken  error // first failed write; guarded by writeMu
	)
	decoder := json.NewDecoder(in)
	for {
		var call Call
		if err := decoder.Decode(&call); err != nil {
			cancel() // calls in progress are of no use to anybody once the suite is gone
			running.Wait()
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
				return broken
			}
			return fmt.Errorf("read call: %w", err)
		}
		running.Go(func() {
			reply := Reply{ID: call.ID}
			var outcome Outcome
			args, err := call.arguments()
			if err == nil {
				outcome, err = peer.Call(ctx, call.Operation, args)
			}
			if err != nil {
				reply.Error = err.Error()
			} else {
				reply.Status = outcome.Status
				if outcome.Body != nil {
					text := string(outcome.Body)
					reply.Body = &text
				}
			}
			writeMu.Lock()
			defer writeMu.Unlock()
			if err := encoder.Encode(reply); err != nil && broken == nil && ctx.Err() == nil {
				broken = fmt.Errorf("write reply: %w", err)
			}
		})
	}
}
