package etcdraft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

const (
	lockFile      = "LOCK"
	storeIDFile   = "store-id"
	bootstrapFile = "bootstrap"
	walFolder     = "wal"
	spoolFile     = "incoming-snapshot"
	// logMarkFile says that a log was created here; a log that is missing then is a loss, not a first start.
	logMarkFile = "log-created"
)

// dataDir is a locked data directory.
type dataDir struct {
	dir     string
	storeID string
	lock    *os.File

	mu struct {
		sync.Mutex
		boot *raftv1.Bootstrap
	}
}

// openDataDir creates the directory and its store id when absent, and holds it against other processes.
func openDataDir(dir string) (*dataDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	if err := syncDir(filepath.Dir(filepath.Clean(dir))); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(lock.Name())
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is held by another process (pid %s); stop that one, or give this one its own data_dir",
				ErrInUse, dir, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
	}
	d := &dataDir{dir: dir, lock: lock}
	if err := d.load(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

func (d *dataDir) load() error {
	// The pid only helps a human; the lock is what counts.
	if err := d.lock.Truncate(0); err == nil {
		_, _ = d.lock.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err := d.loadStoreID(); err != nil {
		return err
	}
	// Left-overs of work that was not completed; each is made anew.
	for _, name := range []string{walFolder + newSuffix, walFolder + newSuffix + ".tmp", spoolFile} {
		if err := os.RemoveAll(d.path(name)); err != nil {
			return fmt.Errorf("remove a left-over file: %w", err)
		}
	}
	raw, err := os.ReadFile(d.path(bootstrapFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the bootstrap record: %w", err)
	}
	boot := &raftv1.Bootstrap{}
	if err := proto.Unmarshal(raw, boot); err != nil {
		return &DamageError{File: d.path(bootstrapFile), Reason: "it does not decode: " + err.Error()}
	}
	d.mu.boot = boot
	return nil
}

func (d *dataDir) loadStoreID() error {
	raw, err := os.ReadFile(d.path(storeIDFile))
	switch {
	case err == nil:
		id, err := uuid.Parse(strings.TrimSpace(string(raw)))
		if err != nil {
			return &DamageError{File: d.path(storeIDFile), Reason: "it holds no UUID"}
		}
		d.storeID = id.String()
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("read the store id: %w", err)
	case d.hasLog():
		return fmt.Errorf("%w: %s holds a log but no file %s; restore that file, or remove this controller from the cluster, "+
			"empty the directory and start it with --join", ErrForeignStore, d.dir, storeIDFile)
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return fmt.Errorf("make a store id: %w", err)
	}
	if err := writeFileSynced(d.path(storeIDFile), []byte(id.String()+"\n")); err != nil {
		return fmt.Errorf("write the store id: %w", err)
	}
	d.storeID = id.String()
	return nil
}

func (d *dataDir) path(name string) string { return filepath.Join(d.dir, name) }
func (d *dataDir) walDir() string          { return d.path(walFolder) }

func (d *dataDir) hasLog() bool {
	_, err := os.Stat(d.walDir())
	return err == nil
}

// markLog notes that the log exists. Done after its creation and before it is used.
func (d *dataDir) markLog() error {
	if _, err := os.Stat(d.path(logMarkFile)); err == nil {
		return nil
	}
	if err := writeFileSynced(d.path(logMarkFile), []byte(d.storeID+"\n")); err != nil {
		return fmt.Errorf("mark the log as created: %w", err)
	}
	return nil
}

// checkLost refuses a directory whose log was there and is gone: starting it afresh under the same store id
// would forget votes and acknowledged entries.
func (d *dataDir) checkLost() error {
	if _, err := os.Stat(d.path(logMarkFile)); err != nil || d.hasLog() {
		return nil
	}
	return fmt.Errorf("%w: the log %s is gone; restore it, or remove this controller from the cluster, empty %s and start it with --join",
		ErrForeignStore, d.walDir(), d.dir)
}

// bootstrap returns the record that this member started from, or nil.
func (d *dataDir) bootstrap() *raftv1.Bootstrap {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.boot
}

func (d *dataDir) saveBootstrap(boot *raftv1.Bootstrap) error {
	raw, err := proto.Marshal(boot)
	if err != nil {
		return fmt.Errorf("encode the bootstrap record: %w", err)
	}
	if err := writeFileSynced(d.path(bootstrapFile), raw); err != nil {
		return fmt.Errorf("write the bootstrap record: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.boot = boot
	return nil
}

// close releases the directory.
func (d *dataDir) close() error { return d.lock.Close() }

// writeFileSynced replaces a file atomically; it is durable on return.
func writeFileSynced(path string, data []byte) (err error) {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
