package consensustest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/naradctl/naradctl-plane/consensus"
)

// Record is one applied command.
type Record struct {
	Index   uint64
	Command string
}

// state is append-only, so sharing a prefix of it is a copy.
type state struct {
	records  []Record
	applied  uint64
	metadata []byte
}

// Disk is what survives the crash of a Machine. The zero value is an empty one within this process. Safe
// for concurrent use.
type Disk struct {
	path string
	mu   struct {
		sync.Mutex
		state
	}
}

// OpenDisk returns a disk that is a file, for machines whose process is killed.
func OpenDisk(path string) (*Disk, error) {
	d := &Disk{path: path}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // Only read.
	d.mu.state, err = readState(f)
	return d, err
}

// set makes s durable.
func (d *Disk) set(s state) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.state = s
	d.mu.records = slices.Clip(s.records)
	if d.path == "" {
		return nil
	}
	f, err := os.Create(d.path + ".tmp")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	_, err = (&snapshot{s}).WriteTo(w)
	if err := errors.Join(err, w.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(d.path+".tmp", d.path)
}

// Machine is a state machine over a Disk. It makes itself durable every FlushEvery entries, so that after a
// crash it usually lags behind what it had applied.
type Machine struct {
	// FlushEvery is at least 1; set before use.
	FlushEvery uint64

	disk *Disk
	mu   struct {
		sync.Mutex
		state
		durable  uint64
		count    map[string]int
		fail     error
		gate     chan struct{}
		restores int
		closed   bool
	}
}

var _ consensus.StateMachine = (*Machine)(nil)

// Open returns a machine with what the disk holds.
func Open(disk *Disk) *Machine {
	m := &Machine{FlushEvery: 16, disk: disk}
	disk.mu.Lock()
	m.mu.state = disk.mu.state
	disk.mu.Unlock()
	m.mu.records = slices.Clip(m.mu.records)
	m.mu.durable = m.mu.applied
	m.recount()
	return m
}

func (m *Machine) recount() {
	m.mu.count = map[string]int{}
	for _, r := range m.mu.records {
		m.mu.count[r.Command]++
	}
}

// Abandon makes the machine lose its disk, like a killed process: nothing it does later is durable.
func (m *Machine) Abandon() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
}

// FailNext makes the next Apply return err.
func (m *Machine) FailNext(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.fail = err
}

// Hold makes Apply wait until release is called.
func (m *Machine) Hold() (release func()) {
	gate := make(chan struct{})
	m.mu.Lock()
	m.mu.gate = gate
	m.mu.Unlock()
	return sync.OnceFunc(func() {
		m.mu.Lock()
		m.mu.gate = nil
		m.mu.Unlock()
		close(gate)
	})
}

// Records returns all applied commands in order. Not to be changed.
func (m *Machine) Records() []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clip(m.mu.records)
}

// Count is how often command was applied.
func (m *Machine) Count(command string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.count[command]
}

// Restores is how many snapshots were restored.
func (m *Machine) Restores() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.restores
}

// Apply implements consensus.StateMachine. The result of a command is how many there are.
func (m *Machine) Apply(entries []consensus.Entry) ([]any, error) {
	m.mu.Lock()
	gate := m.mu.gate
	m.mu.Unlock()
	if gate != nil {
		<-gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.fail; err != nil {
		m.mu.fail = nil
		return nil, err
	}
	results := make([]any, len(entries))
	for i, e := range entries {
		if e.Index != m.mu.applied+1 {
			return nil, fmt.Errorf("entry %d was applied after %d", e.Index, m.mu.applied)
		}
		if e.Command != nil && e.Metadata != nil {
			return nil, fmt.Errorf("entry %d has a command and metadata", e.Index)
		}
		m.mu.applied = e.Index
		if e.Metadata != nil {
			m.mu.metadata = slices.Clone(e.Metadata)
		}
		if e.Command != nil {
			m.mu.records = append(m.mu.records, Record{e.Index, string(e.Command)})
			m.mu.count[string(e.Command)]++
			results[i] = len(m.mu.records)
		}
	}
	if m.mu.applied-m.mu.durable >= m.FlushEvery {
		if err := m.flush(); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (m *Machine) flush() error {
	if m.mu.closed {
		return nil
	}
	if err := m.disk.set(m.mu.state); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	m.mu.durable = m.mu.applied
	return nil
}

// Flush implements consensus.StateMachine.
func (m *Machine) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.flush()
}

// AppliedIndex implements consensus.StateMachine.
func (m *Machine) AppliedIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.applied
}

// DurableIndex implements consensus.StateMachine.
func (m *Machine) DurableIndex() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.durable
}

// Metadata implements consensus.StateMachine.
func (m *Machine) Metadata() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.metadata
}

type snapshot struct{ state }

// Snapshot implements consensus.StateMachine.
func (m *Machine) Snapshot() (consensus.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &snapshot{m.mu.state}
	s.records = slices.Clip(s.records)
	return s, nil
}

func (s *snapshot) Index() uint64    { return s.applied }
func (s *snapshot) Metadata() []byte { return s.metadata }
func (s *snapshot) Close() error     { return nil }

// WriteTo writes applied index, metadata, then the records.
func (s *snapshot) WriteTo(w io.Writer) (int64, error) {
	b := binary.AppendUvarint(nil, s.applied)
	b = appendBytes(b, string(s.metadata))
	b = binary.AppendUvarint(b, uint64(len(s.records)))
	n, err := w.Write(b)
	total := int64(n)
	for _, r := range s.records {
		if err != nil {
			break
		}
		n, err = w.Write(appendBytes(binary.AppendUvarint(nil, r.Index), r.Command))
		total += int64(n)
	}
	return total, err
}

func appendBytes(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// readState reads what WriteTo wrote.
func readState(r io.Reader) (state, error) {
	br := bufio.NewReader(r)
	var err error
	number := func() uint64 {
		n, e := binary.ReadUvarint(br)
		err = errors.Join(err, e)
		return n
	}
	text := func() []byte {
		b := make([]byte, min(number(), 1<<26))
		_, e := io.ReadFull(br, b)
		err = errors.Join(err, e)
		return b
	}
	s := state{applied: number(), metadata: text()}
	for range number() {
		rec := Record{Index: number(), Command: string(text())}
		if err != nil {
			break
		}
		s.records = append(s.records, rec)
	}
	if err != nil {
		return state{}, fmt.Errorf("read a snapshot: %w", err)
	}
	return s, nil
}

// Restore implements consensus.StateMachine.
func (m *Machine) Restore(r io.Reader) error {
	s, err := readState(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.state = s
	m.mu.restores++
	m.recount()
	return m.flush()
}
