package cluster_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/faults"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// TestC05KillsWhileAFreezeEnds: the destination is silent, and the source is killed when the TTL has passed, when its
// revocation is answered, and when it has thawed. It takes writes again by itself; the late flip is refused.
func TestC05KillsWhileAFreezeEnds(t *testing.T) {
	e := start(t, 3, 2)
	topic := e.topic("orders", 1)
	e.fill("orders", 1<<20)
	e.traffic("orders")
	for _, point := range []string{faults.HandoffExpired, faults.HandoffRevoked, faults.HandoffThawed} {
		a := e.assignment("orders", 0)
		from, to := a.GetOwner(), e.other(a)
		silent := e.arm(to, faults.MoveInstalled, "block", topic.GetTopicId())
		record := e.arm(from, point, "kill", topic.GetTopicId())
		move, err := e.cluster.API.StartMove(e.ctx, "orders", 0, to)
		e.must(err)
		e.struck(silent)
		e.diesAt(from, record)
		before := e.ledger.Tally().Delivered
		e.must(harness.Poll(e.ctx, "records flow again", func() error {
			if n := e.ledger.Tally().Delivered; n < before+200 {
				return fmt.Errorf("%d were delivered since", n-before)
			}
			return nil
		}))
		if a := e.assignment("orders", 0); a.GetOwner() != from || a.GetMoveId() != move || a.GetGranted() {
			t.Errorf("%s: records flow while the assignment is %v", point, a)
		}
		e.must(harness.DisarmFaults(e.ctx, e.cluster.Process(to)))
		e.moved("orders", 0, to)
	}
	e.verdict()
}

// TestC11SourceStopsAtTheManifest: the source is frozen, and its whole process is stopped before the final manifest is out: for
// shorter than dead_after, and for longer. The destination waits or gives up; it never goes on without that manifest.
func TestC11SourceStopsAtTheManifest(t *testing.T) {
	for _, long := range []bool{false, true} {
		t.Run(fmt.Sprintf("until it is declared dead: %t", long), func(t *testing.T) {
			e := start(t, 3, 2)
			topic := e.topic("orders", 1)
			e.fill("orders", 1<<20)
			e.traffic("orders")
			a := e.assignment("orders", 0)
			from, to := a.GetOwner(), e.other(a)
			record := e.arm(from, faults.HandoffFrozen, "block", topic.GetTopicId())
			move, err := e.cluster.API.StartMove(e.ctx, "orders", 0, to)
			e.must(err)
			e.struck(record)
			source := e.cluster.Process(from)
			e.must(source.Signal(syscall.SIGSTOP))
			stopped := time.Now()
			e.must(harness.Poll(e.ctx, "it is stopped for long enough", func() error {
				members, err := e.cluster.API.Members(e.ctx)
				if err != nil {
					return err
				}
				if a := e.assignment("orders", 0); a.GetOwner() == to {
					got, err := e.cluster.API.Assignment(e.ctx, topic.GetTopicId(), 0, move)
					e.must(err)
					if got.GetOutcome().GetKind() != planev1.OutcomeKind_OUTCOME_KIND_FORCED {
						return harness.Fatal(fmt.Errorf("it flipped without a final manifest: %v", got))
					}
				}
				dead := members[from].GetNode().GetStatus() == planev1.NodeStatus_NODE_STATUS_DEAD
				if long && !dead || time.Since(stopped) < time.Second {
					return fmt.Errorf("stopped for %s", time.Since(stopped))
				}
				return nil
			}))
			e.must(source.Signal(syscall.SIGCONT))
			e.must(harness.DisarmFaults(e.ctx, source))
			e.moved("orders", 0, to)
			e.verdict()
		})
	}
}

// TestI2KillInsideAnAppend: an agent is killed under load when a batch is written and not synced, synced and not acknowledged, and
// accepted into the queue and not acknowledged.
func TestI2KillInsideAnAppend(t *testing.T) {
	e := start(t, 3, 2)
	topic := e.topic("orders", 4)
	e.traffic("orders")
	for _, point := range []string{faults.AppendWritten, faults.AppendSynced, faults.IngressSynced} {
		for _, agent := range []string{"agent-1", "agent-2"} {
			e.diesAt(agent, e.arm(agent, point, "kill", topic.GetTopicId()))
			e.must(e.cluster.WaitReady(e.ctx, e.cluster.Process(agent)))
		}
	}
	e.verdict()
}

// TestC10SlowBodyAcrossAMove: a client sends its records slowly, the partition is frozen and moves in the middle of the request, and
// another client leaves in the middle of its own. The first one's records are all there, of the second's none.
func TestC10SlowBodyAcrossAMove(t *testing.T) {
	e := start(t, 1, 2)
	e.topic("slow", 1)
	url := "http://" + e.cluster.Agents[0].Address + "/v1/topics/slow/"
	post := func(path string, body io.Reader, into any) error {
		req, err := http.NewRequestWithContext(e.ctx, http.MethodPost, url+path, body)
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(resp.Body)
			return fmt.Errorf("%s: %s", resp.Status, text)
		}
		return json.NewDecoder(resp.Body).Decode(into)
	}
	const records = 400
	one := `{"value":"` + strings.Repeat("QUJD", 1000) + `"}`
	whole, write := io.Pipe()
	half, abandon := io.Pipe()
	answered, left := make(chan error, 1), make(chan error, 1)
	go func() { answered <- post("produce", whole, &struct{}{}) }()
	go func() { left <- post("produce", half, &struct{}{}) }()
	send := func(w io.Writer, n int, first bool) {
		t.Helper()
		for i := range n {
			text := "," + one
			if first && i == 0 {
				text = `{"records":[` + one
			}
			_, err := io.WriteString(w, text)
			e.must(err)
		}
	}
	send(write, records/2, true)
	send(abandon, records/2, true)
	to := e.other(e.assignment("slow", 0))
	_, err := e.cluster.API.StartMove(e.ctx, "slow", 0, to)
	e.must(err)
	e.moved("slow", 0, to)
	send(write, records/2, false)
	_, err = io.WriteString(write, "]}")
	e.must(err)
	e.must(write.Close())
	e.must(<-answered)
	_ = abandon.CloseWithError(fmt.Errorf("the client leaves"))
	if err := <-left; err == nil {
		t.Error("half a request was answered with success")
	}
	seen := 0
	for idle := 0; idle < 2; {
		var got struct {
			Records []struct{ Receipt string }
		}
		e.must(post("consume", strings.NewReader(`{"group":"g","wait":"1s","maxRecords":100}`), &got))
		if len(got.Records) == 0 {
			idle++
		}
		seen += len(got.Records)
	}
	if seen != records {
		t.Errorf("%d records are there, want the %d of the slow client", seen, records)
	}
}
