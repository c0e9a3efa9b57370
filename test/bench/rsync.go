package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// rsync compares a move with rsync through its daemon on loopback: whole files, synced.
func rsync(ctx context.Context, e *env) error {
	name, g := fmt.Sprintf("copy of one partition of %d MiB, rsync", e.sizeMiB), ratioAtLeast(1.5)
	binary, err := exec.LookPath("rsync")
	if err != nil {
		return e.add(skipped(name, "MB/s", g, "rsync is not installed"))
	}
	c, topicID, err := e.filled(ctx, harness.Options{}, 1)
	if err != nil {
		return err
	}
	defer c.KillAll()
	var moved, synced []float64
	owner, other := "agent-1", "agent-2"
	for range copyRounds {
		files := segments(c.Dir, owner, topicID, 1)
		if err := evictAll(files); err != nil {
			return err
		}
		s, err := rsyncOnce(ctx, binary, e.dir, filepath.Dir(files[0][0]))
		if err != nil {
			return err
		}
		if err := evictAll(files); err != nil {
			return err
		}
		m, err := e.moveAll(ctx, c, "copied", topicID, 1)
		if err != nil {
			return err
		}
		e.log("move %.0f MB/s, rsync %.0f MB/s", m/1e6, s/1e6)
		moved, synced = append(moved, m/1e6), append(synced, s/1e6)
		owner, other = other, owner
	}
	return e.add(compared(name, median(moved), median(synced), "MB/s", g, "against rsync --whole-file --fsync from its daemon"))
}

// rsyncOnce copies a directory and returns bytes per second.
func rsyncOnce(ctx context.Context, binary, dir, from string) (rate float64, err error) {
	dir, err = os.MkdirTemp(dir, "rsync-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	address, err := harness.FreeAddress()
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	conf := filepath.Join(dir, "rsyncd.conf")
	text := fmt.Sprintf("use chroot = no\naddress = 127.0.0.1\nport = %s\n[from]\npath = %s\nread only = yes\n", port, from)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return 0, err
	}
	daemon := exec.CommandContext(ctx, binary, "--daemon", "--no-detach", "--config", conf)
	if err := daemon.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait() // it was killed
	}()
	if err := harness.Poll(ctx, "rsync's daemon listens", func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		return 0, err
	}
	to := filepath.Join(dir, "to")
	began := time.Now()
	cmd := exec.CommandContext(ctx, binary, "--recursive", "--whole-file", "--fsync", "rsync://"+address+"/from/", to)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("rsync: %w: %s", err, out)
	}
	took := time.Since(began)
	var bytes int64
	err = filepath.WalkDir(to, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			bytes += fi.Size()
		}
		return err
	})
	if err == nil && bytes == 0 {
		err = errors.Join(errors.New("rsync copied nothing"), io.ErrUnexpectedEOF)
	}
	return float64(bytes) / took.Seconds(), err
}
