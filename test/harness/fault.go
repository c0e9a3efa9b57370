package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/internal/faults"
)

// Arm is a fault to come in one process; see the package faults for the fields.
type Arm struct {
	Point   string  `json:"point"`
	Action  string  `json:"action"`
	TopicID uint64  `json:"topic_id,omitempty"`
	Index   *uint32 `json:"index,omitempty"`
	Times   int     `json:"times,omitempty"`
	Record  string  `json:"record,omitempty"`
}

// ArmFault arms a fault in a process, which must run the binary with fault points.
func ArmFault(ctx context.Context, p *Process, a Arm) error {
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return debugFaults(ctx, p, http.MethodPost, body)
}

// DisarmFaults disarms all faults of a process and releases what is blocked.
func DisarmFaults(ctx context.Context, p *Process) error {
	return debugFaults(ctx, p, http.MethodDelete, nil)
}

// SetClock makes a process's wall clock differ from the machine's. Its binary must be one whose clock can be set.
func SetClock(ctx context.Context, p *Process, by time.Duration) error {
	body, err := json.Marshal(map[string]int64{"wall_step_seconds": int64(by / time.Second)})
	if err != nil {
		return err
	}
	return debugFaults(ctx, p, http.MethodPut, body)
}

func debugFaults(ctx context.Context, p *Process, method string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.Address+"/debug/faults", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := present.Load().brief.Do(req)
	if err != nil {
		return fmt.Errorf("%s /debug/faults of %s: %w", method, p.Name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s /debug/faults of %s: %s: %s", method, p.Name, resp.Status, bytes.TrimSpace(text))
	}
	return nil
}

// Struck reads the first event that an armed fault recorded; os.ErrNotExist when it has not struck.
func Struck(record string) (faults.Event, error) {
	var e faults.Event
	b, err := os.ReadFile(record)
	if err != nil {
		return e, err
	}
	line, _, whole := strings.Cut(string(b), "\n")
	if !whole {
		return e, fmt.Errorf("%s: %w", record, io.ErrUnexpectedEOF)
	}
	return e, json.Unmarshal([]byte(line), &e)
}
