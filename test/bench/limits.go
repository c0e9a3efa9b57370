package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

const bareBuffer = 1 << 20

// bare copies files as fast as this machine can: each stream reads its files, sends them over one loopback TCP connection, and
// its other end writes and syncs them. It returns bytes per second, and removes what it wrote.
func bare(ctx context.Context, dir string, streams [][]string) (float64, error) {
	dir, err := os.MkdirTemp(dir, "bare-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	var total int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i, files := range streams {
		var size int64
		for _, f := range files {
			fi, err := os.Stat(f)
			if err != nil {
				return 0, err
			}
			size += fi.Size()
		}
		total += size
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		g.Go(func() error { return bareSend(ctx, l.Addr().String(), files) })
		g.Go(func() error { return bareReceive(l, filepath.Join(dir, fmt.Sprint(i)), size) })
	}
	if err := g.Wait(); err != nil {
		return 0, fmt.Errorf("bare copy: %w", err)
	}
	return float64(total) / time.Since(began).Seconds(), nil
}

func bareSend(ctx context.Context, address string, files []string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, bareBuffer)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		// Without the wrapper the standard library would send the file inside the kernel, which is slower on loopback.
		_, err = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{f}, buf)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func bareReceive(l net.Listener, name string, size int64) error {
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{c}, make([]byte, bareBuffer))
	if err == nil && n != size {
		err = fmt.Errorf("%d of %d bytes arrived", n, size)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// evict makes the next reading of files go to the disk.
func evict(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// syncTimes measures appends of 4 KiB with their sync.
func syncTimes(dir string, n int) ([]time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []time.Duration
	for range n {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return nil, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		out = append(out, time.Since(start))
	}
	return out, nil
}

// commitTimes measures requests that commit one entry.
func commitTimes(ctx context.Context, c *harness.Cluster, n int) ([]time.Duration, error) {
	var out []time.Duration
	for i := range n {
		passes := uint32(1000 + i)
		start := time.Now()
		if err := c.API.UpdateSettings(ctx, &planev1.Settings{MaxPasses: &passes}); err != nil {
			return nil, err
		}
		out = append(out, time.Since(start))
	}
	passes := uint32(20)
	return out, c.API.UpdateSettings(ctx, &planev1.Settings{MaxPasses: &passes})
}

// costs are what a freeze is made of.
type costs struct{ sync, commit time.Duration }

// sum is one sync at each of both sides and one commit.
func (c costs) sum() time.Duration { return 2*c.sync + c.commit }

func measureCosts(ctx context.Context, e *env, c *harness.Cluster) (costs, error) {
	syncs, err := syncTimes(e.dir, 300)
	if err != nil {
		return costs{}, err
	}
	commits, err := commitTimes(ctx, c, 300)
	if err != nil {
		return costs{}, err
	}
	e.log("sync p50 %s p99 %s, commit p50 %s p99 %s", harness.Quantile(syncs, 0.5), harness.Quantile(syncs, 0.99),
		harness.Quantile(commits, 0.5), harness.Quantile(commits, 0.99))
	return costs{harness.Quantile(syncs, 0.5), harness.Quantile(commits, 0.5)}, nil
}

// parts reports the costs themselves.
func parts(ctx context.Context, e *env) error {
	c, err := e.cluster(ctx, harness.Options{})
	if err != nil {
		return err
	}
	defer c.KillAll()
	k, err := measureCosts(ctx, e, c)
	if err != nil {
		return err
	}
	if err := e.add(row("synced write of 4 KiB, p50", milli(k.sync), "ms", reported, "")); err != nil {
		return err
	}
	return e.add(compared("commit by 3 controllers, p50", milli(k.commit), milli(k.sync), "ms", reported, "against a synced write"))
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
