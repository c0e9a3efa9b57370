// Package faultfs mounts a directory a second time, with a disk below it that can be full, slow, or unable to sync. It is a
// FUSE file system in the test's process and needs the rights to mount.
//
// What is written before a failed sync stays written, as on a disk that comes back; a disk that loses it is simulated
// elsewhere. It knows nothing of the product.
package faultfs

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Faults says what is wrong with a disk. The zero value is a good one.
type Faults struct {
	// Full refuses whatever needs space, and reports that none is left.
	Full bool
	// SyncFails refuses every sync.
	SyncFails bool
	// SyncDelay is added to each sync.
	SyncDelay time.Duration
}

// FS is a mounted file system. Safe for concurrent use.
type FS struct {
	server *fuse.Server
	faults atomic.Pointer[Faults]
}

// Mount mounts dir at mountpoint, which is made.
func Mount(dir, mountpoint string) (*FS, error) {
	if err := os.MkdirAll(mountpoint, 0o755); err != nil {
		return nil, err
	}
	f := &FS{}
	f.Set(Faults{})
	data := &fs.LoopbackRoot{Path: dir}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	data.Dev = uint64(st.Dev)
	root := &node{LoopbackNode: &fs.LoopbackNode{RootData: data}, fs: f}
	data.RootNode = root
	var err error
	f.server, err = fs.Mount(mountpoint, root, &fs.Options{
		MountOptions: fuse.MountOptions{FsName: "faultfs", DirectMount: true, DisableXAttrs: true, Logger: log.New(io.Discard, "", 0)},
	})
	if err != nil {
		return nil, fmt.Errorf("mount %s at %s (it needs /dev/fuse and CAP_SYS_ADMIN): %w", dir, mountpoint, err)
	}
	return f, nil
}

// Unavailable says why nothing can be mounted here; nil when it can.
func Unavailable() error {
	dir, err := os.MkdirTemp("", "faultfs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f, err := Mount(dir, dir+".mnt")
	if err != nil {
		return err
	}
	defer os.Remove(dir + ".mnt")
	return f.Unmount()
}

// Set replaces what is wrong. Syncs that wait go on waiting.
func (f *FS) Set(x Faults) { f.faults.Store(&x) }

// Unmount ends the file system. Nothing may be open in it.
func (f *FS) Unmount() error { return f.server.Unmount() }

// room refuses what needs space.
func (f *FS) room() syscall.Errno {
	if f.faults.Load().Full {
		return syscall.ENOSPC
	}
	return 0
}

// sync waits, and refuses.
func (f *FS) sync(ctx context.Context) syscall.Errno {
	x := f.faults.Load()
	if x.SyncDelay > 0 {
		select {
		case <-ctx.Done():
			return syscall.EINTR
		case <-time.After(x.SyncDelay):
		}
	}
	if x.SyncFails {
		return syscall.EIO
	}
	return 0
}

type node struct {
	*fs.LoopbackNode
	fs *FS
}

var _ fs.NodeWrapChilder = (*node)(nil)

// WrapChild gives what is below the same faults.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if l, ok := ops.(*fs.LoopbackNode); ok {
		return &node{LoopbackNode: l, fs: n.fs}
	}
	return ops
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.room(); errno != 0 {
		return nil, nil, 0, errno
	}
	in, h, ff, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return in, n.fs.wrap(h), ff, errno
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, ff, errno := n.LoopbackNode.Open(ctx, flags)
	return n.fs.wrap(h), ff, errno
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, ff, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if d, ok := h.(directory); ok {
		h = &dir{directory: d, fs: n.fs}
	}
	return h, ff, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.fs.room(); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	if n.fs.room() != 0 {
		out.Bfree, out.Bavail = 0, 0
	}
	return errno
}

// file is an open file. Its reads and writes do not pass this process by.
type file struct {
	*fs.LoopbackFile
	fs *FS
}

func (f *FS) wrap(h fs.FileHandle) fs.FileHandle {
	if l, ok := h.(*fs.LoopbackFile); ok {
		return &file{LoopbackFile: l, fs: f}
	}
	return h
}

func (h *file) PassthroughFd() (int, bool) { return 0, false }

func (h *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := h.fs.room(); errno != 0 {
		return 0, errno
	}
	return h.LoopbackFile.Write(ctx, data, off)
}

func (h *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if errno := h.fs.room(); errno != 0 {
		return errno
	}
	return h.LoopbackFile.Allocate(ctx, off, size, mode)
}

func (h *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if errno := h.fs.sync(ctx); errno != 0 {
		return errno
	}
	return h.LoopbackFile.Fsync(ctx, flags)
}

// directory is what the library's handle of an open directory does.
type directory interface {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
	fs.FileFsyncdirer
}

type dir struct {
	directory
	fs *FS
}

func (d *dir) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	if errno := d.fs.sync(ctx); errno != 0 {
		return errno
	}
	return d.directory.Fsyncdir(ctx, flags)
}
