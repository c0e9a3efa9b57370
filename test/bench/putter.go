package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// putter is a client of etcd that puts the watched key whenever it is told to.
type putter struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPutter(ctx context.Context, c *etcdCluster) (*putter, error) {
	cmd := exec.CommandContext(ctx, c.client, "trigger", "-endpoints", c.endpoints)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &putter{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

// put returns the revision that it made.
func (p *putter) put() (uint64, error) {
	if _, err := fmt.Fprintln(p.in); err != nil {
		return 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(line), 10, 64)
}

func (p *putter) stop() {
	err := errors.Join(p.in.Close(), p.cmd.Wait())
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: etcd's client:", err)
	}
}
