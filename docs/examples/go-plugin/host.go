package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"
)

const (
	protocolVersion  = 1
	protocolVariable = "BACKENDAI_PLUGIN_PROTOCOL"
	callsDescriptor  = 3
	maxFrame         = 16 << 20
)

// PluginError is an error that the agent understands by its code, such as "invalid-api-params" for wrong settings,
// "not-found" for an unknown device, or "creation-denied" for a workload that must not start.
type PluginError struct{ Code, Message string }

func (e *PluginError) Error() string { return e.Message }

// Call is a method call of the agent. Its context ends with the deadline and when the agent cancels it. State is the
// managed state of a hook, as JSON; it is set before the hook runs, and returned to the agent afterwards.
type Call struct {
	Context      context.Context
	Method       string
	Arguments    []any
	State        []byte
	StateVersion int
}

// Serve answers the calls of the agent, each in a goroutine of its own, until the agent closes the socket.
func Serve(handle func(*Call) (any, error)) error {
	if os.Getenv(protocolVariable) == "" {
		return errors.New("this is an accelerator plugin of Backend.AI: an agent starts it, or `backend.ai accelerator check --program`")
	}
	host := &host{file: os.NewFile(callsDescriptor, "agent"), handle: handle, cancels: map[int]context.CancelFunc{}}
	for {
		frame, err := readFrame(host.file)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = host.take(frame)
		}
		if err != nil {
			return err
		}
	}
}

type host struct {
	file    *os.File
	handle  func(*Call) (any, error)
	writing sync.Mutex
	mutex   sync.Mutex
	cancels map[int]context.CancelFunc
}

// readFrame returns the next frame: a length of four bytes, big-endian, and so many bytes of MessagePack.
func readFrame(reader io.Reader) ([]any, error) {
	var head [4]byte
	if _, err := io.ReadFull(reader, head[:]); err != nil {
		return nil, io.EOF
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", length)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(reader, data); err != nil {
		return nil, io.EOF
	}
	value, err := unpack(data)
	if err != nil {
		return nil, err
	}
	frame, isArray := value.([]any)
	if !isArray || len(frame) < 2 {
		return nil, errMalformed
	}
	return frame, nil
}

func (h *host) send(frame ...any) {
	body := pack(frame)
	data := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	h.writing.Lock()
	defer h.writing.Unlock()
	if _, err := h.file.Write(data); err != nil {
		os.Exit(0) // the agent is gone
	}
}

// take begins or cancels a call. Frames of a kind that this program does not know are left out.
func (h *host) take(frame []any) error {
	kind, _ := frame[0].(string)
	id, isNumber := frame[1].(int)
	if !isNumber {
		return errMalformed
	}
	switch kind {
	case "Cancel":
		h.mutex.Lock()
		cancel := h.cancels[id]
		h.mutex.Unlock()
		if cancel != nil {
			cancel()
		}
	case "Call":
		if len(frame) < 5 {
			return errMalformed
		}
		method, _ := frame[2].(string)
		packed, _ := frame[3].([]byte)
		arguments, err := unpack(packed)
		list, isList := arguments.([]any)
		if err != nil || !isList {
			return errMalformed
		}
		ctx, cancel := context.WithCancel(context.Background())
		if seconds := toFloat(frame[4]); seconds > 0 {
			ctx, cancel = context.WithTimeout(context.Background(), time.Duration(seconds*float64(time.Second)))
		}
		h.mutex.Lock()
		h.cancels[id] = cancel
		h.mutex.Unlock()
		go h.serve(id, &Call{Context: ctx, Method: method, Arguments: list}, cancel)
	}
	return nil
}

func (h *host) serve(id int, call *Call, cancel context.CancelFunc) {
	defer func() {
		cancel()
		h.mutex.Lock()
		delete(h.cancels, id)
		h.mutex.Unlock()
	}()
	answer, err := h.guarded(call)
	var state any
	if call.State != nil {
		state = []any{call.State, call.StateVersion}
	}
	var known *PluginError
	switch {
	case err == nil:
		h.send("Answer", id, pack(answer), state)
	case call.Context.Err() != nil:
		h.send("Failure", id, "deadline", "", "", pack(map[string]any{}), "", state)
	case errors.As(err, &known):
		h.send("Failure", id, "backend", known.Code, known.Message, pack(map[string]any{}), "", state)
	default:
		h.send("Failure", id, "other", "error", err.Error(), pack(map[string]any{}), "", state)
	}
}

// guarded calls the plugin; a panic becomes the error of this call and does not end the other ones.
func (h *host) guarded(call *Call) (answer any, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			log.Printf("%s: %v", call.Method, reason)
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	return h.handle(call)
}

func toFloat(value any) float64 {
	switch value := value.(type) {
	case float64:
		return value
	case int:
		return float64(value)
	}
	return 0
}
