package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for a daemon; it is long because machines are slow, and is never waited out.
const patience = 60 * time.Second

// buffer is a bytes.Buffer for a daemon that writes and a test that reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// process is the program, run in this one.
type process struct {
	stdout, stderr buffer
	stop           context.CancelFunc
	ended          chan int
}

func start(t testing.TB, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{stop: cancel, ended: make(chan int, 1)}
	go func() { p.ended <- execute(ctx, args, strings.NewReader(""), &p.stdout, &p.stderr) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%v\n--- stdout\n%s--- stderr\n%s", args, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// end stops the daemon and returns its exit code.
func (p *process) end(t testing.TB) int {
	t.Helper()
	p.stop()
	return p.wait(t)
}

func (p *process) wait(t testing.TB) int {
	t.Helper()
	select {
	case code := <-p.ended:
		return code
	case <-time.After(patience):
		t.Fatal("the daemon did not end")
		return -1
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !cond() {
		if !pause(ctx, 20*time.Millisecond) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

var listening = regexp.MustCompile(`(?m)^(controller|agent) (\S+) listening on ([0-9.:]+)`)

// address waits for the line with a daemon's address.
func (p *process) address(t testing.TB, name string) string {
	t.Helper()
	var found string
	eventually(t, name+" listening", func() bool {
		for _, m := range listening.FindAllStringSubmatch(p.stdout.String(), -1) {
			if m[2] == name {
				found = m[3]
			}
		}
		return found != ""
	})
	return found
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// ok runs the program and fails the test unless it ends well.
func ok(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	r := run(t, stdin, args...)
	if r.code != codeDone {
		t.Fatalf("%v: %s", args, r)
	}
	return r.stdout
}

// TestC40QuickStart runs what the README shows, in one process: records survive the decommissioning of a node,
// and the wait ends when the node is no member any more.
func TestC40QuickStart(t *testing.T) {
	dir := t.TempDir()
	d := start(t, "dev", "--data-dir", dir)
	addr := "--addr=" + d.address(t, "ctl-1")
	eventually(t, "three nodes", func() bool {
		return strings.Count(run(t, "", "cluster", "members", addr).stdout, "alive") == 3
	})
	ok(t, "", "topic", "create", "orders", "--partitions", "6", addr)
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintln(&lines, i)
	}
	ok(t, lines.String(), "produce", "orders", addr)

	out := ok(t, "", "cluster", "decommission", "node-1", "--wait", "--timeout", patience.String(), addr)
	if !strings.Contains(out, "node-1 is no member any more") {
		t.Errorf("decommission printed %q", out)
	}
	if out := ok(t, "", "cluster", "members", addr); strings.Contains(out, "node-1") {
		t.Errorf("node-1 is still there:\n%s", out)
	}
	eventually(t, "node-1 stops by itself", func() bool { return strings.Contains(d.stdout.String(), "node-1 was decommissioned") })
	if out := ok(t, "", "cluster", "moves", "--history", addr); strings.Count(out, "flipped") < 2 {
		t.Errorf("history after a drain of two partitions:\n%s", out)
	}
	seen := map[string]bool{}
	for _, line := range strings.Split(ok(t, "", "consume", "orders", "--group", "me", "--ack", addr), "\n") {
		if f := strings.Split(line, "\t"); len(f) == 4 {
			seen[f[3]] = true
		}
	}
	if len(seen) != 1000 {
		t.Errorf("consumed %d different records, want 1000", len(seen))
	}
	if out := ok(t, "", "consume", "orders", "--group", "me", addr); out != "" {
		t.Errorf("acknowledged records came again:\n%s", out)
	}
	// Each part has its own metrics, as a daemon has, and what did not happen yet is a zero.
	for name, series := range map[string][]string{
		"ctl-1": {`naradplane_moves_total{outcome="flipped"} 2`, `naradplane_moves_total{outcome="forced"} 0`,
			`naradplane_moves_in_flight{phase="frozen"} 0`, "naradplane_move_bytes_total ", "naradplane_move_freeze_seconds_count 2",
			"naradplane_move_non_converged_total 0", "naradplane_move_retries_total 0"},
		"node-2": {"naradnode_ingress_accepted_records_total ", "naradnode_lease_valid 1"},
	} {
		_, page := get(t, "http://"+d.address(t, name)+"/metrics")
		for _, want := range series {
			if !strings.Contains(page, "\n"+want) {
				t.Errorf("the metrics of %s lack %q", name, want)
			}
		}
		if strings.Contains(page, "\nnaradnode_") != (name == "node-2") {
			t.Errorf("the metrics of %s are mixed with others", name)
		}
	}
	if r := run(t, "", "topic", "describe", "nothing", addr); r.code != codeNotFound {
		t.Errorf("describe of an unknown topic: %s", r)
	}
	if r := run(t, "", "topic", "create", "orders", addr); r.code != codeError || !strings.Contains(r.stderr, "orders") {
		t.Errorf("create of a topic that exists: %s", r)
	}
	if code := d.end(t); code != codeDone {
		t.Errorf("dev ended with %d", code)
	}

	// The data is found again; the node that left stays away.
	d = start(t, "dev", "--data-dir", dir)
	addr = "--addr=" + d.address(t, "ctl-1")
	eventually(t, "the topic is there after a restart", func() bool {
		return strings.Contains(run(t, "", "topic", "list", addr).stdout, "orders")
	})
	if !strings.Contains(d.stdout.String(), "node-1 was decommissioned in an earlier run") {
		t.Errorf("nothing is said about node-1:\n%s", d.stdout.String())
	}
	if code := d.end(t); code != codeDone {
		t.Errorf("dev ended with %d", code)
	}
}

// notifySocket listens like systemd and returns what was sent so far.
func notifySocket(t *testing.T, watchdog time.Duration) *buffer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", fmt.Sprint(watchdog.Microseconds()))
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	got := &buffer{}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			fmt.Fprintf(got, "%s\n", b[:n])
		}
	})
	t.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	return got
}

// TestC63FirstControllerOfThreeIsReady: alone it has no leader, and yet it is READY, feeds the watchdog, answers,
// says what it waits for, and stops in an orderly way.
func TestC63FirstControllerOfThreeIsReady(t *testing.T) {
	sent := notifySocket(t, 300*time.Millisecond)
	self := nobody(t)
	p := start(t, "controller", "--name", "ctl-1", "--listen", self, "--data-dir", t.TempDir(),
		"--peers", "ctl-1="+self+",ctl-2="+nobody(t)+",ctl-3="+nobody(t))
	eventually(t, "READY and a fed watchdog", func() bool {
		return strings.Contains(sent.String(), "READY=1") && strings.Count(sent.String(), "WATCHDOG=1") >= 2
	})
	base := "http://" + p.address(t, "ctl-1")
	if code, body := get(t, base+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, body := get(t, base+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "other first controllers") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := get(t, base+"/v1/cluster/status"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no leader") {
		t.Errorf("/v1/cluster/status: %d %s", code, body)
	}
	if code, body := get(t, base+"/metrics"); code != http.StatusOK || !strings.Contains(body, "go_goroutines") {
		t.Errorf("/metrics: %d %.200s", code, body)
	}
	if r := run(t, "", "cluster", "status", "--addr", self, "--timeout", "300ms"); r.code != codeNoLeader {
		t.Errorf("status: %s", r)
	}
	if code := p.end(t); code != codeDone {
		t.Errorf("the controller ended with %d", code)
	}
	eventually(t, "STOPPING", func() bool { return strings.Contains(sent.String(), "STOPPING=1") })
}

// TestC66UnspecifiedListenAddress: daemons on all addresses are dialled by what they advertise.
func TestC66UnspecifiedListenAddress(t *testing.T) {
	t.Setenv("NARADPLANE_INSECURE", "true")
	_, port, err := net.SplitHostPort(nobody(t))
	if err != nil {
		t.Fatal(err)
	}
	ctl := start(t, "controller", "--name", "ctl-1", "--listen", "0.0.0.0:"+port, "--advertise", "127.0.0.1:"+port, "--data-dir", t.TempDir())
	node := start(t, "agent", "--node-id", "node-1", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:0", "--data-dir", t.TempDir(),
		"--controllers", "127.0.0.1:"+port)
	addr := "--addr=127.0.0.1:" + port
	eventually(t, "the node is a member", func() bool {
		return strings.Contains(run(t, "", "cluster", "members", "-o", "wide", addr).stdout, " 127.0.0.1:")
	})
	ok(t, "", "topic", "create", "t", addr)
	ok(t, "", "produce", "t", "x", addr)
	if out := ok(t, "", "consume", "t", "-g", "g", addr); !strings.Contains(out, "\tx\n") {
		t.Errorf("consumed %q", out)
	}
	for name, p := range map[string]*process{"agent": node, "controller": ctl} {
		if code := p.end(t); code != codeDone {
			t.Errorf("the %s ended with %d", name, code)
		}
	}
}

// TestC37RefusedStartsSayWhyAndHow: the exit code keeps a service manager from trying for ever.
func TestC37RefusedStartsSayWhyAndHow(t *testing.T) {
	dir := t.TempDir()
	ctl := start(t, "controller", "--name", "ctl-1", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "ctl"))
	addr := ctl.address(t, "ctl-1")
	agent := func(id, data string) *process {
		return start(t, "agent", "--node-id", id, "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, data), "--controllers", addr)
	}
	first := agent("node-1", "a")
	eventually(t, "node-1 is a member", func() bool {
		return strings.Contains(run(t, "", "cluster", "members", "--addr", addr).stdout, "node-1")
	})
	second := agent("node-1", "b") // the same id, another disk
	if code := second.wait(t); code != codeRefused || !strings.Contains(second.stderr.String(), "decommission node-1") {
		t.Errorf("an agent with a foreign disk ended with %d: %s", code, second.stderr.String())
	}
	clone := agent("node-1", "a") // the same directory, twice
	if code := clone.wait(t); code == codeDone || !strings.Contains(clone.stderr.String(), filepath.Join(dir, "a")) {
		t.Errorf("a second agent on one directory ended with %d: %s", code, clone.stderr.String())
	}
	taken := start(t, "controller", "--name", "ctl-2", "--listen", addr, "--data-dir", filepath.Join(dir, "c2"))
	if code := taken.wait(t); code != codeError || !strings.Contains(taken.stderr.String(), "in use") {
		t.Errorf("a controller on a taken address ended with %d: %s", code, taken.stderr.String())
	}
	if out := ok(t, "", "cluster", "members", "--addr", addr); !strings.Contains(out, "node-1  alive") {
		t.Errorf("the first agent does not serve any more:\n%s", out)
	}
	first.end(t)
	ctl.end(t)
}

// TestRESTTakesWhatCurlSends: JSON without a type is JSON, but not from a browser's form.
func TestRESTTakesWhatCurlSends(t *testing.T) {
	d := start(t, "dev", "--agents", "1", "--data-dir", t.TempDir())
	addr, node := d.address(t, "ctl-1"), d.address(t, "node-1")
	eventually(t, "the topic", func() bool { return run(t, "", "topic", "create", "t", "--addr", addr).code == codeDone })
	post := func(url, body string, header ...string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if len(header) == 2 {
			req.Header.Set(header[0], header[1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, err.Error()
		}
		return resp.StatusCode, string(b)
	}
	produce, record := "http://"+node+"/v1/topics/t/produce", `{"records":[{"value":"aGVsbG8="}]}`
	eventually(t, "produce by REST", func() bool {
		code, _ := post(produce, record)
		return code == http.StatusOK
	})
	if code, body := post(produce, record, "Origin", "http://elsewhere.example"); code != http.StatusUnsupportedMediaType {
		t.Errorf("a form of another page was accepted: %d %s", code, body)
	}
	if code, body := post("http://"+node+"/v1/topics/t/consume", `{"group":"g","wait":"5s"}`); code != http.StatusOK || !strings.Contains(body, "aGVsbG8=") {
		t.Errorf("consume: %d %s", code, body)
	}
	if code, body := post("http://"+addr+"/naradplane.v1.TopicService/DescribeTopic", `{"name":"t"}`); code != http.StatusOK || !strings.Contains(body, "node-1") {
		t.Errorf("describe by Connect: %d %s", code, body)
	}
	if code, body := post("http://"+addr+"/v1/cluster/members/nobody/decommission", ""); code != http.StatusNotFound || !strings.Contains(body, "nobody") {
		t.Errorf("decommission of an unknown node: %d %s", code, body)
	}
	d.end(t)
}
