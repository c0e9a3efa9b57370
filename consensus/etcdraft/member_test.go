package etcdraft_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus/consensustest"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
)

// envMember makes the test binary a member process.
const envMember = "NARADPLANE_TEST_MEMBER"

// runMember is a process of its own: "hold" keeps a directory until stdin ends; a member serves raft,
// POST /propose and GET /records on the listener that it inherits.
func runMember() {
	dir := os.Getenv("NARADPLANE_TEST_DIR")
	if os.Getenv(envMember) == "hold" {
		_, err := etcdraft.New(etcdraft.Config{Name: "a", AdvertiseAddress: "127.0.0.1:1", DataDir: dir}, zap.NewNop())
		if err != nil {
			panic(err)
		}
		fmt.Print("x")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	if err := serveMember(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveMember(dir string) error {
	var cfg etcdraft.Config
	if err := json.Unmarshal([]byte(os.Getenv(envMember)), &cfg); err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	logCfg := zap.NewDevelopmentConfig()
	logCfg.OutputPaths = []string{filepath.Join(dir, "log")}
	logger, err := logCfg.Build()
	if err != nil {
		return err
	}
	n, err := etcdraft.New(cfg, logger)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/raft/v1/", n.Handler())
	var backend atomic.Pointer[etcdraft.Backend]
	disk, err := consensustest.OpenDisk(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	machine := consensustest.Open(disk)
	machine.FlushEvery = 50
	mux.HandleFunc("POST /propose", func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if b := backend.Load(); b != nil && err == nil {
			_, _, err = b.Propose(r.Context(), raw)
		} else {
			err = errors.Join(err, errors.New("starting"))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /records", func(w http.ResponseWriter, r *http.Request) {
		b := backend.Load()
		if b == nil || b.Barrier(r.Context()) != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(machine.Records())
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	b, err := n.Start(context.Background(), machine)
	if err != nil {
		return err
	}
	backend.Store(b)
	<-b.Done()
	return b.Err()
}

// process is one member process, killed and started again on one listener.
type process struct {
	t   *testing.T
	cfg etcdraft.Config
	dir string
	l   *os.File
	cmd *exec.Cmd
	out bytes.Buffer
}

func (p *process) start() {
	p.t.Helper()
	raw, err := json.Marshal(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), envMember+"="+string(raw), "NARADPLANE_TEST_DIR="+p.dir)
	p.cmd.ExtraFiles = []*os.File{p.l}
	p.out.Reset()
	p.cmd.Stderr = &p.out
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("kill %s: %v; it said: %s", p.cfg.Name, err, p.out.String())
	}
	_ = p.cmd.Wait() // Killed, as said.
}

func do(method, url, body string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, raw)
	}
	return raw, nil
}

func startProcesses(t *testing.T) []*process {
	t.Helper()
	var ps []*process
	var peers []etcdraft.Peer
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := l.Close(); err != nil { // The file keeps the port.
			t.Fatal(err)
		}
		name := fmt.Sprintf("c%d", i+1)
		peers = append(peers, etcdraft.Peer{Name: name, Address: l.Addr().String()})
		ps = append(ps, &process{t: t, dir: t.TempDir(), l: f})
	}
	for i, p := range ps {
		p.cfg = etcdraft.Config{
			Name: peers[i].Name, AdvertiseAddress: peers[i].Address, DataDir: filepath.Join(p.dir, "raft"), InitialMembers: peers,
			TickInterval: 30 * time.Millisecond, SegmentBytes: 128 << 10, SnapshotEntries: 200, TrailEntries: 100,
		}
		p.start()
		t.Cleanup(p.kill)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return ps
}

// TestC50KillInALoopUnderLoad kills member processes at random moments while clients write: afterwards all
// members hold the same records, and every acknowledged one exactly once or more often only if it was retried.
func TestC50KillInALoopUnderLoad(t *testing.T) {
	ps := startProcesses(t)
	var acked sync.Map
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				command := fmt.Sprintf("%d/%d", k, i)
				for try := k; ; try++ {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := do(http.MethodPost, "http://"+ps[try%3].cfg.AdvertiseAddress+"/propose", command); err == nil {
						acked.Store(command, true)
						break
					}
				}
			}
		})
	}
	count := func() (n int) {
		acked.Range(func(any, any) bool { n++; return true })
		return n
	}
	for round := range 9 {
		before := count()
		consensustest.Eventually(t, "writes go on", func() bool { return count() > before+40 })
		victims := []int{round % 3}
		if round%3 == 2 {
			victims = []int{0, 1, 2}
		}
		for _, v := range victims {
			ps[v].kill()
		}
		for _, v := range victims {
			ps[v].start()
		}
	}
	before := count()
	consensustest.Eventually(t, "writes go on after the last kill", func() bool { return count() > before+20 })
	close(stop)
	wg.Wait()
	var all [][]consensustest.Record
	for _, p := range ps {
		var records []consensustest.Record
		consensustest.Eventually(t, p.cfg.Name+" answers", func() bool {
			raw, err := do(http.MethodGet, "http://"+p.cfg.AdvertiseAddress+"/records", "")
			return err == nil && json.Unmarshal(raw, &records) == nil
		})
		all = append(all, records)
	}
	// A proposal of unknown outcome may still be applied between two reads.
	n := min(len(all[0]), len(all[1]), len(all[2]))
	for i := range all {
		if diff := cmp.Diff(all[0][:n], all[i][:n]); diff != "" {
			t.Fatalf("c1 and c%d differ:\n%s", i+1, diff)
		}
	}
	have := map[string]bool{}
	for _, r := range all[0][:n] {
		have[r.Command] = true
	}
	acked.Range(func(command, _ any) bool {
		if !have[command.(string)] {
			t.Errorf("acknowledged %v is lost", command)
		}
		return true
	})
	t.Logf("%d acknowledged, %d records", count(), n)
}
