package nodeagent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// FormatVersion is the version of the database's keyspace.
//
//	1: meta, journal (with the outbound markers), cached view, salvage positions, ingress queue.
const FormatVersion = 1

// Names inside the data directory.
const (
	dbDir    = "agentdb"
	lockFile = "LOCK"
)

// Key prefixes. Each ends with a slash, and none is a prefix of another.
const (
	metaPrefix    = "meta/"
	journalPrefix = "journal/"
	cachePrefix   = "cache/"
	salvagePrefix = "salvage/"
	// IngressPrefix begins every key of the data plane's ingress queue.
	IngressPrefix = "ingress/"
)

const (
	formatKey      = metaPrefix + "format"
	storeKey       = metaPrefix + "store_id"
	nodeKey        = metaPrefix + "node_id"
	clusterKey     = metaPrefix + "cluster_id"
	incarnationKey = metaPrefix + "incarnation"
	removedKey     = metaPrefix + "removed"
)

// DB is the agent's one database: identity, incarnation, move journal, outbound markers, cached view,
// salvage positions; the ingress queue lives beside them under its own prefix. Methods are safe for
// concurrent use. What they write is synced when they return nil, except the cached view and the journal's deletions.
type DB struct {
	pebble *pebble.DB
	lock   io.Closer
	store  cluster.StoreID
	mu     struct {
		sync.Mutex
		incarnation cluster.Incarnation
	}
}

// DBOptions are OpenDB's arguments.
type DBOptions struct {
	// Dir is the data directory. It is created when absent.
	Dir string
	// NodeID is recorded at the first use, and must be the same later.
	NodeID cluster.NodeID
	// FS defaults to the real disk.
	FS vfs.FS
	// Log may be nil.
	Log *zap.Logger
}

// OpenDB locks the data directory and opens its database, making both at the first use. A directory
// that another process uses, that belongs to another node id, or whose format is newer than this
// version's is refused with the remedy.
func OpenDB(o DBOptions) (*DB, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if err := mkdirSynced(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	// The lock comes first: nothing is read or written beside a running agent.
	lock, err := o.FS.Lock(o.FS.PathJoin(o.Dir, lockFile))
	if err != nil {
		return nil, cluster.Errorf(cluster.ReasonBlocked,
			"data directory %s is in use by another process (%v): stop that agent, or give this one another data_dir", o.Dir, err)
	}
	db, err := openLocked(o)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	db.lock = lock
	return db, nil
}

// mkdirSynced makes a directory and syncs every directory that got a new entry, so that a crash can't take
// the whole of it.
func mkdirSynced(fs vfs.FS, dir string) error {
	var parents []string
	for d := dir; ; {
		if _, err := fs.Stat(d); err == nil {
			break
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		parent := fs.PathDir(d)
		if parent == d {
			break
		}
		parents = append(parents, parent)
		d = parent
	}
	if err := fs.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for _, p := range parents {
		d, err := fs.OpenDir(p)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

func openLocked(o DBOptions) (*DB, error) {
	p, err := pebble.Open(o.FS.PathJoin(o.Dir, dbDir), &pebble.Options{
		FS:                 o.FS,
		FormatMajorVersion: pebble.FormatNewest,
		Logger:             pebbleLog{o.Log.Named("agentdb").Sugar()},
		MemTableSize:       16 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("open the agent's database: %w", err)
	}
	db := &DB{pebble: p}
	if err := db.load(o); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return db, nil
}

// load checks the format and the owner, or writes them at the first use.
func (db *DB) load(o DBOptions) error {
	format, err := db.get(formatKey)
	if err != nil {
		return err
	}
	if format == nil {
		return db.initialise(o)
	}
	if v := binary.BigEndian.Uint64(pad8(format)); v != FormatVersion {
		return cluster.Errorf(cluster.ReasonBlocked,
			"data directory %s has format %d, this version reads %d: run the version that wrote it", o.Dir, v, FormatVersion)
	}
	store, err := db.get(storeKey)
	if err != nil {
		return err
	}
	node, err := db.get(nodeKey)
	if err != nil {
		return err
	}
	if string(node) != string(o.NodeID) {
		return cluster.Errorf(cluster.ReasonForeignStore,
			"data directory %s belongs to node %q, not %q: set node_id to %q, or give this node another data_dir", o.Dir, node, o.NodeID, node)
	}
	inc, err := db.get(incarnationKey)
	if err != nil {
		return err
	}
	db.store = cluster.StoreID(store)
	db.mu.incarnation = cluster.Incarnation(binary.BigEndian.Uint64(pad8(inc)))
	return nil
}

func (db *DB) initialise(o DBOptions) error {
	id, err := uuid.NewRandom()
	if err != nil {
		return fmt.Errorf("make a store id: %w", err)
	}
	db.store = cluster.StoreID(id.String())
	b := db.pebble.NewBatch()
	defer b.Close()
	// One batch, so that a crash leaves either nothing or all of it.
	for _, kv := range []struct {
		key   string
		value []byte
	}{
		{formatKey, be64(FormatVersion)},
		{storeKey, []byte(db.store)},
		{nodeKey, []byte(o.NodeID)},
		{incarnationKey, be64(0)},
	} {
		if err := b.Set([]byte(kv.key), kv.value, nil); err != nil {
			return fmt.Errorf("initialise the agent's database: %w", err)
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("initialise the agent's database: %w", err)
	}
	return nil
}

// Close closes the database and unlocks the directory. Users of Pebble must have stopped.
func (db *DB) Close() error {
	return errors.Join(db.pebble.Close(), db.lock.Close())
}

// Pebble is the database itself, for the ingress queue under IngressPrefix.
func (db *DB) Pebble() *pebble.DB { return db.pebble }

// StoreID is the data directory's identity.
func (db *DB) StoreID() cluster.StoreID { return db.store }

// Incarnation is the present one; zero before the first NextIncarnation of a new directory.
func (db *DB) Incarnation() cluster.Incarnation {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.mu.incarnation
}

// NextIncarnation raises the incarnation, durably, and returns it.
func (db *DB) NextIncarnation() (cluster.Incarnation, error) {
	return db.raiseIncarnation(0)
}

// raiseIncarnation raises the incarnation above the present one and above min.
func (db *DB) raiseIncarnation(min cluster.Incarnation) (cluster.Incarnation, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	next := max(db.mu.incarnation, min) + 1
	// Invariant I7: synced before it is used, so that no later start can use it again.
	if err := db.put(incarnationKey, be64(uint64(next))); err != nil {
		return 0, err
	}
	db.mu.incarnation = next
	return next, nil
}

// ClusterID is the cluster that this directory registered with; empty before the first time.
func (db *DB) ClusterID() (cluster.ClusterID, error) {
	v, err := db.get(clusterKey)
	return cluster.ClusterID(v), err
}

// SetClusterID records the cluster.
func (db *DB) SetClusterID(id cluster.ClusterID) error { return db.put(clusterKey, []byte(id)) }

// SetRemoved records that the cluster removed this node, so that a restart does not join it again.
func (db *DB) SetRemoved() error { return db.put(removedKey, []byte{1}) }

// Removed reports whether SetRemoved was called.
func (db *DB) Removed() (bool, error) {
	v, err := db.get(removedKey)
	return v != nil, err
}

func (db *DB) get(key string) ([]byte, error) {
	v, closer, err := db.pebble.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	out := append([]byte{}, v...)
	if err := closer.Close(); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return out, nil
}

func (db *DB) put(key string, value []byte) error {
	if err := db.pebble.Set([]byte(key), value, pebble.Sync); err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// scan calls fn with every key below prefix, in order; key comes without the prefix. Both slices are
// copies.
func (db *DB) scan(prefix string, fn func(key string, value []byte) error) error {
	it, err := db.pebble.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: prefixEnd(prefix)})
	if err != nil {
		return fmt.Errorf("scan %s: %w", prefix, err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		key := string(it.Key()[len(prefix):])
		if err := fn(key, append([]byte{}, it.Value()...)); err != nil {
			return errors.Join(err, it.Close())
		}
	}
	if err := it.Close(); err != nil {
		return fmt.Errorf("scan %s: %w", prefix, err)
	}
	return nil
}

func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	end[len(end)-1]++
	return end
}

func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// pad8 makes a short value decodable as zero-extended, so that a foreign value is an unknown version and
// not a panic.
func pad8(b []byte) []byte {
	out := make([]byte, 8)
	if len(b) >= 8 {
		copy(out, b[:8])
		return out
	}
	copy(out[8-len(b):], b)
	return out
}

// pebbleLog passes on Pebble's messages; its chatter is debug.
type pebbleLog struct{ log *zap.SugaredLogger }

func (l pebbleLog) Infof(format string, args ...any)  { l.log.Debugf(format, args...) }
func (l pebbleLog) Errorf(format string, args ...any) { l.log.Errorf(format, args...) }

// Fatalf is called on damage that Pebble can't go on with. The process must stop: data that can't be
// made durable must not be acknowledged.
func (l pebbleLog) Fatalf(format string, args ...any) { l.log.Fatalf(format, args...) }

// Journal is the part of the database that moves, markers and salvage keep their records in.
type Journal struct{ db *DB }

// Journal returns the journal.
func (db *DB) Journal() Journal { return Journal{db} }

// Save sets a value; it is synced when Save returns nil.
func (j Journal) Save(key string, value []byte) error { return j.db.put(journalPrefix+key, value) }

// Delete removes a key, if it is there. It becomes durable with the next synced write: what comes back after a crash
// is resolved again.
func (j Journal) Delete(key string) error {
	if err := j.db.pebble.Delete([]byte(journalPrefix+key), pebble.NoSync); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

// Load returns every key with the prefix.
func (j Journal) Load(prefix string) (map[string][]byte, error) {
	out := map[string][]byte{}
	err := j.db.scan(journalPrefix+prefix, func(key string, value []byte) error {
		out[prefix+key] = value
		return nil
	})
	return out, err
}

// PartitionsDir is where the partition store of a data directory lives.
func PartitionsDir(dataDir string) string { return filepath.Join(dataDir, "store") }

// cachedView is a View as it is kept for a start without a control plane.
type cachedView struct {
	Nodes       []cluster.Node
	Topics      []cluster.Topic
	Assignments []cluster.Assignment
	Controllers []cluster.Controller
	Settings    cluster.Settings
	Restored    cluster.Restored
}

const cacheKey = cachePrefix + "view"

// SaveView replaces the cached view. It is not synced: it is a cache, and what safety needs is in the
// markers.
func (db *DB) SaveView(v *View, self cluster.NodeID) error {
	c := cachedView{Settings: v.Settings, Assignments: v.Owned(self), Restored: v.Restored}
	for _, n := range v.Nodes {
		c.Nodes = append(c.Nodes, n)
	}
	for _, t := range v.Topics {
		c.Topics = append(c.Topics, t)
	}
	for _, ctl := range v.Controllers {
		c.Controllers = append(c.Controllers, ctl)
	}
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the cached view: %w", err)
	}
	if err := db.pebble.Set([]byte(cacheKey), data, pebble.NoSync); err != nil {
		return fmt.Errorf("write the cached view: %w", err)
	}
	return nil
}

// LoadView returns the cached view as changes, or nil when there is none.
func (db *DB) LoadView() ([]cluster.Change, error) {
	data, err := db.get(cacheKey)
	if err != nil || data == nil {
		return nil, err
	}
	var c cachedView
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("decode the cached view: %w", err)
	}
	out := []cluster.Change{{Settings: &c.Settings}, {Restored: &c.Restored}}
	for i := range c.Nodes {
		out = append(out, cluster.Change{Node: &c.Nodes[i]})
	}
	for i := range c.Topics {
		out = append(out, cluster.Change{Topic: &c.Topics[i]})
	}
	for i := range c.Assignments {
		out = append(out, cluster.Change{Assignment: &c.Assignments[i]})
	}
	for i := range c.Controllers {
		out = append(out, cluster.Change{Controller: &c.Controllers[i]})
	}
	return out, nil
}
