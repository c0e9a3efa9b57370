package fabric

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The test binary is the daemon of a host, too: it answers each line, or dials another one.
const (
	envServe = "FABRIC_TEST_SERVE"
	envDial  = "FABRIC_TEST_DIAL"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envServe) != "":
		serve(os.Getenv(envServe))
	case os.Getenv(envDial) != "":
		dial(os.Getenv(envDial))
	default:
		os.Exit(m.Run())
	}
}

// serve echoes lines; "send N" is answered by N bytes.
func serve(address string) {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		panic(err)
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			for lines := bufio.NewScanner(c); lines.Scan(); {
				var n int
				if _, err := fmt.Sscanf(lines.Text(), "send %d", &n); err == nil {
					_, _ = io.CopyN(c, zeros{}, int64(n))
				} else {
					fmt.Fprintln(c, lines.Text())
				}
			}
		}()
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// dial says for each line of its input whether the other host answers one on a fresh connection.
func dial(address string) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(answers(address, time.Second))
	}
}

func answers(address string, within time.Duration) bool {
	c, err := net.DialTimeout("tcp4", address, within)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(within))
	fmt.Fprintln(c, "hello")
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && line == "hello\n"
}

// launch runs the test binary on a place, as a server or as a dialler, and returns its input and output.
func launch(t *testing.T, at Place, env string) (io.Writer, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := at.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return in, bufio.NewScanner(out)
}

// lab is a network with a server on host b, and a process on host a that dials it.
type lab struct {
	*testing.T
	net     Network
	address string
	ask     func() bool // whether b answers a
}

func newLab(t *testing.T, n Network) *lab {
	t.Helper()
	// Processes end before their network does.
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	a, err := n.Add("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.Add("b")
	if err != nil {
		t.Fatal(err)
	}
	_, served := launch(t, b, envServe+"="+b.Listen)
	if !served.Scan() {
		t.Fatal("the server does not listen")
	}
	in, said := launch(t, a, envDial+"="+b.Advertise)
	return &lab{T: t, net: n, address: b.Advertise, ask: func() bool {
		fmt.Fprintln(in)
		return said.Scan() && said.Text() == "true"
	}}
}

// faultsBite shows each fault at work, and that it is gone afterwards.
func (l *lab) faultsBite() {
	expect := func(what string, a, clients bool) {
		l.Helper()
		if got := l.ask(); got != a {
			l.Errorf("%s: b answers a: %t", what, got)
		}
		if got := answers(l.address, time.Second); got != clients {
			l.Errorf("%s: b answers the clients: %t", what, got)
		}
	}
	cut := Rule{Cut: true}
	expect("good links", true, true)
	l.net.Set("a", "b", cut)
	expect("a can't send to b", false, true)
	l.net.Set("a", "b", Rule{})
	l.net.Set("b", "a", cut)
	expect("b can't send to a", false, true)
	l.net.Heal()
	expect("healed", true, true)
	l.net.Set("b", Any, cut)
	expect("b is mute", false, false)
	l.net.Set("b", Any, Rule{})
	l.net.Set(Any, "b", cut)
	expect("b is deaf", false, false)
	l.net.Heal()
	expect("healed again", true, true)

	l.net.Set(Clients, "b", Rule{Delay: 300 * time.Millisecond})
	began := time.Now()
	if !answers(l.address, 5*time.Second) || time.Since(began) < 300*time.Millisecond {
		l.Errorf("an answer over a slow link came after %s", time.Since(began))
	}
	l.net.Set(Clients, "b", Rule{Loss: 1})
	if answers(l.address, time.Second) {
		l.Error("an answer came over a link that loses everything")
	}
	l.net.Heal()

	l.net.Rate("b", 1<<20)
	c, err := net.Dial("tcp4", l.address)
	if err != nil {
		l.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "send %d\n", 1<<19)
	began = time.Now()
	if n, err := io.CopyN(io.Discard, c, 1<<19); err != nil || time.Since(began) < 300*time.Millisecond {
		l.Errorf("%d bytes at 1 MiB/s came after %s, %v", n, time.Since(began), err)
	}
}

// TestFaultsBiteOverProxies: on loopback, whatever the machine permits.
func TestFaultsBiteOverProxies(t *testing.T) { newLab(t, NewProxies(1)).faultsBite() }

// TestFaultsBiteInNamespaces runs itself in a network of its own, where it can be made.
func TestFaultsBiteInNamespaces(t *testing.T) {
	if !Isolated() {
		code, err := Isolate("-test.run=^TestFaultsBiteInNamespaces$", "-test.v")
		if err != nil {
			t.Logf("NOT SHOWN HERE: %v", err)
		} else if code != 0 {
			t.Errorf("in a network of its own it ended with code %d, see above", code)
		}
		return
	}
	n, err := NewNamespaces(1)
	if err != nil {
		if strings.Contains(err.Error(), "operation not permitted") || os.IsNotExist(err) {
			t.Logf("NOT SHOWN HERE: %v", err)
			return
		}
		t.Fatal(err)
	}
	newLab(t, n).faultsBite()
}

// TestPacketsAreReordered: with jitter, the fates of packets are not in the order of their sending; and duplicates come.
func TestPacketsAreReordered(t *testing.T) {
	r := newRules(1)
	r.set("a", "b", Rule{Delay: time.Millisecond, Jitter: 50 * time.Millisecond, Duplicate: 0.5})
	reordered, twice := false, false
	last := time.Duration(0)
	for range 100 {
		fate := r.fate("a", "b")
		reordered = reordered || fate[0] < last
		twice = twice || len(fate) == 2
		last = fate[0]
	}
	if !reordered || !twice {
		t.Errorf("of 100 packets some came out of order: %t, some twice: %t", reordered, twice)
	}
	if fate := r.fate("b", "a"); len(fate) != 1 || fate[0] != 0 {
		t.Errorf("the way back: %v", fate)
	}
}
