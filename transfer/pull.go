package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// pullOptions says how a pull is done.
type pullOptions struct {
	// limited applies the node's copy rate.
	limited bool
	// compare re-reads what is complete: sealed files, and the active one as far as it is listed.
	compare bool
}

const (
	// queuedBuffers bounds the buffers of one file between the network and the disk.
	queuedBuffers = 2
	// pullRounds bounds how often damaged ranges are fetched again in one pass.
	pullRounds = 4
	// fetchAttempts bounds the requests of one range without progress.
	fetchAttempts = 4
	fetchBackoff  = 50 * time.Millisecond
	// compareFrom is from how many missing bytes on a file is compared as soon as it is complete even
	// inside a freeze, so that the step is seen.
	compareFrom = 8 << 20
)

// piece is one buffer on its way to the staged copy.
type piece struct {
	at  int64
	buf *[bufferSize]byte
	n   int
}

var errGone = errors.New("the source does not list it any more")

// pull stages every byte of the adopted manifest that is missing. Several files are under way at once, in the manifest's
// order; each is read, written, synced and compared by itself, so that the syncs of some overlap the copying of others.
// Damage found on the way or by comparing is fetched again.
func (r *run) pull(ctx context.Context, o pullOptions) (cluster.Bytes, error) {
	r.passBytes.Store(0)
	var damage error
	for range pullRounds {
		todo := r.todo(o)
		if len(todo) == 0 {
			return cluster.Bytes(r.passBytes.Load()), nil
		}
		damaged, err := r.pullRound(ctx, todo, o)
		if errors.Is(err, errGone) {
			// Retention at the source: the next manifest says what is left.
			return cluster.Bytes(r.passBytes.Load()), r.unlessFinal(err, o)
		}
		if err != nil {
			return 0, err
		}
		if damaged == nil {
			return cluster.Bytes(r.passBytes.Load()), nil
		}
		damage = damaged
	}
	return 0, fmt.Errorf("damaged again and again: %w", damage)
}

func (r *run) unlessFinal(err error, o pullOptions) error {
	if o.compare {
		return nil
	}
	return err
}

// job is a file with what is staged of it.
type job struct {
	file store.File
	have int64
}

func (r *run) todo(o pullOptions) []job {
	staged := map[string]int64{}
	for _, f := range r.work.staging.Files() {
		staged[f.Name] = int64(f.Size)
	}
	var out []job
	for _, f := range r.work.manifest.Files {
		have := staged[f.Name]
		uncompared := o.compare && f.Blocks != nil && r.work.confirmed[f.Name] != f.Size
		if have < int64(f.Size) || uncompared {
			out = append(out, job{f, have})
		}
	}
	return out
}

// round is what the jobs of one round share.
type round struct {
	sync.Mutex
	// damaged is a CORRUPT of the staged copy: what was bad was cut off.
	damaged error
}

// pullRound works off each job once.
func (r *run) pullRound(ctx context.Context, jobs []job, o pullOptions) (damaged, err error) {
	var rd round
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.m.cfg.Streams)
	for _, j := range jobs {
		g.Go(func() error {
			err := r.pullFile(ctx, j, o, &rd)
			if cluster.ReasonOf(err) != cluster.ReasonCorrupt {
				return err
			}
			rd.Lock()
			defer rd.Unlock()
			delete(r.work.confirmed, j.file.Name)
			rd.damaged = err
			return nil
		})
	}
	err = g.Wait()
	return rd.damaged, err
}

// pullFile stages what is missing of a file, and compares it if it is due. CORRUPT is of the staged copy.
func (r *run) pullFile(ctx context.Context, j job, o pullOptions, rd *round) error {
	missing := int64(j.file.Size) - j.have
	if missing > 0 {
		if err := r.stageFile(ctx, j, o); err != nil {
			return err
		}
		if o.compare {
			if err := r.hit(faults.MoveFileStaged, 0); err != nil {
				return err
			}
		}
	}
	if j.file.Blocks == nil || (!o.compare && missing < compareFrom) {
		return nil
	}
	if err := r.work.staging.SyncAndCompare(ctx, j.file); err != nil {
		if cluster.ReasonOf(err) == cluster.ReasonCorrupt {
			return r.cutDifferent(j.file, err)
		}
		return fmt.Errorf("compare %s: %w", j.file.Name, err)
	}
	rd.Lock()
	defer rd.Unlock()
	r.work.confirmed[j.file.Name] = j.file.Size
	r.steps.Add(1)
	return nil
}

// stageFile reads a file's missing bytes and writes them, at the same time.
func (r *run) stageFile(ctx context.Context, j job, o pullOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pieces := make(chan piece, queuedBuffers)
	var fetched error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(pieces)
		fetched = r.fetch(ctx, j, o, pieces)
	})
	var written error
	for p := range pieces {
		if written == nil {
			if written = r.work.staging.Write(j.file.Name, p.at, p.buf[:p.n]); written == nil {
				r.passBytes.Add(uint64(p.n))
				r.steps.Add(1)
			} else {
				cancel()
			}
		}
		buffers.Put(p.buf)
	}
	wg.Wait()
	if written != nil {
		return fmt.Errorf("stage %s: %w", j.file.Name, written)
	}
	return fetched
}

// cutDifferent removes what differs from the source's digests, so that the next round fetches it.
func (r *run) cutDifferent(want store.File, cause error) error {
	have, ok := r.work.staging.File(want.Name)
	if !ok {
		return cause
	}
	if keep := samePrefix(want, have, false); keep < have.Size {
		if err := r.work.staging.Truncate(want.Name, int64(keep)); err != nil {
			return fmt.Errorf("cut staged %s: %w", want.Name, err)
		}
	}
	return cause
}

// fetch reads a file's missing bytes, going on where it was when a request fails, as long as there is
// progress.
func (r *run) fetch(ctx context.Context, j job, o pullOptions, out chan<- piece) error {
	at, end := j.have, int64(j.file.Size)
	for tries := 0; at < end; {
		before := at
		err := r.fetchRange(ctx, j.file, &at, end, o, out)
		if err == nil {
			break
		}
		if at > before {
			tries = 0
		}
		tries++
		if tries >= fetchAttempts || ctx.Err() != nil || permanent(err) {
			return fmt.Errorf("read %s at %d: %w", j.file.Name, at, err)
		}
		t := time.NewTimer(fetchBackoff << tries)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// statusError is an answer other than 206.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.code, e.text) }

// permanent answers do not change by asking again with the same manifest.
func permanent(err error) bool {
	var s *statusError
	return errors.Is(err, errGone) || (errors.As(err, &s) && s.code >= 400 && s.code < 500)
}

func deliver(ctx context.Context, out chan<- piece, p piece) error {
	select {
	case out <- p:
		return nil
	case <-ctx.Done():
		buffers.Put(p.buf)
		return ctx.Err()
	}
}

// fetchRange reads [*at, end) and advances *at. It ends when no byte arrives for the progress time-out; the
// time that the disk takes does not count.
func (r *run) fetchRange(ctx context.Context, f store.File, at *int64, end int64, o pullOptions, out chan<- piece) error {
	base, err := r.base()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(r.m.cfg.ProgressTimeout, func() {
		cancel(fmt.Errorf("no byte for %s", r.m.cfg.ProgressTimeout))
	})
	defer quiet.Stop()
	u := fmt.Sprintf("%s%s%d/%d/%s", base, BulkPath, r.p.Topic, r.p.Index, url.PathEscape(f.Name))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", *at, end-1))
	req.Header.Set(HeaderMoveID, strconv.FormatUint(uint64(r.move), 10))
	req.Header.Set(HeaderIncarnation, strconv.FormatUint(uint64(r.work.incarnation), 10))
	req.Header.Set(HeaderFileIdentity, f.Identity)
	res, err := r.m.cfg.HTTP.Do(req)
	if err != nil {
		return orCause(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusPartialContent {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 200))
		if res.StatusCode == http.StatusNotFound {
			return errGone
		}
		return &statusError{res.StatusCode, string(text)}
	}
	for *at < end {
		want := int(min(bufferSize, end-*at))
		if o.limited {
			quiet.Stop()
			if err := r.m.limiter.WaitN(ctx, want); err != nil {
				return orCause(ctx, err)
			}
			quiet.Reset(r.m.cfg.ProgressTimeout)
		}
		buf := buffers.Get().(*[bufferSize]byte)
		n, err := readSome(res.Body, buf[:want], quiet, r.m.cfg.ProgressTimeout)
		if n == 0 {
			buffers.Put(buf)
			return orCause(ctx, err)
		}
		quiet.Stop()
		if derr := deliver(ctx, out, piece{at: *at, buf: buf, n: n}); derr != nil {
			return orCause(ctx, derr)
		}
		quiet.Reset(r.m.cfg.ProgressTimeout)
		*at += int64(n)
		if err != nil && *at < end {
			return orCause(ctx, err)
		}
	}
	return nil
}

// readSome fills buf as far as the stream goes, and rewinds the quiet timer with every read.
func readSome(r io.Reader, buf []byte, quiet *time.Timer, d time.Duration) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = r.Read(buf[n:])
		if k > 0 {
			quiet.Reset(d)
		}
		n += k
	}
	if n < len(buf) && err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func orCause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && ctx.Err() != nil {
		return c
	}
	return err
}
