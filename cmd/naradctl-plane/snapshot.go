package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/client"
	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/consensus/etcdraft"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/proto/naradplane/v1/planev1connect"
)

// restoringDir is a controller's state while it is being restored. A controller refuses to start beside it.
const restoringDir = "state.restoring"

func (a *app) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Back the control plane up, and restore it",
		Long: `Back the control plane up, and restore it when most controllers are lost for good.

A backup holds who owns what, topics, nodes and settings. The partitions' data is the agents' own and
is not in it.`,
	}
	cmd.AddCommand(a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotShowCommand())
	return cmd
}

func (a *app) snapshotSaveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "save FILE",
		Short: "Write a backup to a file",
		Long: `Write a backup of the control plane to a file. It is streamed from one controller while the cluster
runs, and is as of the moment of the call. The file is checked and synced before it gets its name; an
existing one is replaced then.`,
		Example: "  naradctl-plane cluster snapshot save /backup/plane-$(date +%F).snap",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, size, err := a.saveSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "saved %s: %s, revision %d of cluster %s, by %s\n", args[0], humanize.IBytes(uint64(size)), h.Revision, h.ClusterID, h.Controller)
			return nil
		},
	}
}

// saveSnapshot streams a backup into a file beside the named one, verifies it, and gives it the name.
func (a *app) saveSnapshot(ctx context.Context, file string) (h fsm.BackupHeader, size int64, err error) {
	ctx, cancel := a.limit(ctx, true)
	defer cancel()
	part, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".part-*")
	if err != nil {
		return h, 0, fmt.Errorf("make the backup's file: %w", err)
	}
	defer func() {
		_ = part.Close()
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	// A whole stream comes from one controller; after an error the next one begins anew.
	if err := a.eachController(ctx, func(ctx context.Context, c planev1connect.ClusterServiceClient) error {
		return receiveSnapshot(ctx, c, part)
	}); err != nil {
		return h, 0, err
	}
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return h, 0, err
	}
	if h, err = fsm.VerifyBackup(part); err != nil {
		return h, 0, fmt.Errorf("the backup did not arrive whole: %w", err)
	}
	if size, err = part.Seek(0, io.SeekEnd); err != nil {
		return h, 0, err
	}
	if err := part.Sync(); err != nil {
		return h, 0, fmt.Errorf("sync the backup: %w", err)
	}
	if err := os.Rename(part.Name(), file); err != nil {
		return h, 0, fmt.Errorf("name the backup: %w", err)
	}
	return h, size, syncDirectory(filepath.Dir(file))
}

func receiveSnapshot(ctx context.Context, c planev1connect.ClusterServiceClient, f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	stream, err := c.SaveSnapshot(ctx, &planev1.SaveSnapshotRequest{})
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // Everything was read, or an error is returned.
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := f.Write(m.GetData()); err != nil {
			return fmt.Errorf("write the backup: %w", err)
		}
	}
}

// eachController asks one controller after the other: what a stream is made of comes from one.
func (a *app) eachController(ctx context.Context, fn func(context.Context, planev1connect.ClusterServiceClient) error) error {
	var nobody client.UnreachableError
	for _, address := range a.addrs {
		c, err := a.connectOne(address)
		if err != nil {
			return err
		}
		err = fn(ctx, c.Cluster())
		c.Close()
		if err == nil {
			return nil
		}
		if r := cluster.ReasonOf(apierr.FromConnect(err)); r != 0 && r != cluster.ReasonNoLeader {
			return a.explain(err)
		}
		nobody.Attempts = append(nobody.Attempts, client.Attempt{Address: strings.TrimSpace(address), Err: err})
	}
	nobody.Party = "controller"
	return a.explain(&nobody)
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (a *app) snapshotShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show FILE",
		Short:   "Check a backup and say what it is of",
		Example: "  naradctl-plane cluster snapshot show /backup/plane-2026-12-02.snap",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			h, err := fsm.VerifyBackup(f)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			row(a.stdout, "cluster", h.ClusterID)
			row(a.stdout, "revision", h.Revision)
			row(a.stdout, "created", h.CreatedAt.Format(time.RFC3339))
			row(a.stdout, "by", fmt.Sprintf("%s (%s)", h.Controller, h.Version))
			return nil
		},
	}
}

const restoreLong = `Make the data directory of a new cluster's first controller from a backup.

For when most controllers are lost for good. The steps:

  1. Stop all old controllers and keep them from starting. (Agents may run on: they serve what is
     not being moved.)
  2. Restore on one host, start the controller there, at an address that the agents are configured
     with.
  3. Start the others with empty data directories and --join.
  4. The agents come by themselves. Each says which copies it holds, and by that the partitions get
     their owners, wherever they have moved since the backup. "cluster status" says what is missing.

It is a new cluster with an id of its own: agents that have joined it refuse the old controllers. What
was decided after the backup is not known to it. Nothing is deleted on its word that it can't know, and
topics that were created since come back with the agents that hold them.`

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var dir, name, advertise string
	cmd := &cobra.Command{
		Use:   "restore FILE --data-dir DIR --name NAME --advertise HOST:PORT",
		Short: "Make a new cluster's first controller from a backup",
		Long:  restoreLong,
		Example: `  naradctl-plane cluster snapshot restore plane.snap --data-dir /var/lib/naradctl-plane/controller \
      --name ctl-1 --advertise 10.0.0.1:7400
  naradctl-plane controller --name ctl-1 --listen 10.0.0.1:7400 --insecure
  naradctl-plane controller --name ctl-2 --listen 10.0.0.2:7400 --insecure --join 10.0.0.1:7400`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if dir == "" || name == "" || advertise == "" {
				return withCode(codeUsage, errors.New("--data-dir, --name and --advertise must be given"))
			}
			if err := cluster.ValidateControllerName(cluster.ControllerName(name)); err != nil {
				return withCode(codeUsage, err)
			}
			h, id, restored, err := restoreController(args[0], dir, name, advertise)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "restored %s of %s (revision %d of cluster %s) to %s\n", args[0], h.CreatedAt.Format(time.RFC3339), h.Revision, h.ClusterID, dir)
			fmt.Fprintf(a.stdout, "the new cluster is %s; its revisions begin at %d\n", id, restored.Base)
			fmt.Fprintf(a.stdout, "next: naradctl-plane controller --name %s --data-dir %s --listen %s; then the others with --join %s\n", name, dir, advertise, advertise)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the controller's data directory; absent or empty")
	cmd.Flags().StringVar(&name, "name", "", "the controller's name")
	cmd.Flags().StringVar(&advertise, "advertise", "", "host:port under which the controller will be reached")
	return cmd
}

// restoreController makes a data directory from a backup. A crash leaves a directory that no controller starts with.
func restoreController(file, dir, name, advertise string) (h fsm.BackupHeader, id cluster.ClusterID, restored cluster.Restored, err error) {
	f, err := os.Open(file)
	if err != nil {
		return h, "", restored, err
	}
	defer f.Close()
	// Before anything is made: a damaged backup is refused and leaves no trace.
	raftID, err := fsm.NextRaftID(f)
	if err != nil {
		return h, "", restored, fmt.Errorf("%s: %w", file, err)
	}
	if err := emptyForRestore(dir); err != nil {
		return h, "", restored, err
	}
	node, err := etcdraft.New(etcdraft.Config{
		Name: name, AdvertiseAddress: advertise, DataDir: dir, InitialMembers: []etcdraft.Peer{{Name: name, Address: advertise}},
	}, zap.NewNop())
	if err != nil {
		return h, "", restored, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	self := consensus.Member{ID: consensus.ID(raftID), Name: name, Address: advertise, StoreID: node.StoreID(), Role: consensus.Voter}
	id = cluster.ClusterID(strings.ReplaceAll(uuid.NewString(), "-", ""))
	building := filepath.Join(dir, restoringDir)
	m, err := fsm.Open(building, fsm.Options{})
	if err != nil {
		return h, "", restored, err
	}
	_, err = f.Seek(0, io.SeekStart)
	if err == nil {
		h, restored, err = m.Import(f, fsm.Rebirth{
			Metadata: etcdraft.BootstrapMetadata(string(id), []consensus.Member{self}), FirstIndex: etcdraft.FirstIndex, Now: time.Now(),
			Controller: cluster.Controller{
				Name: cluster.ControllerName(name), RaftID: raftID, Address: advertise, StoreID: cluster.StoreID(node.StoreID()),
			},
		})
	}
	if err = errors.Join(err, m.Close()); err != nil {
		return h, "", restored, err
	}
	// From here on the directory is a controller's.
	if err := os.Rename(building, filepath.Join(dir, "state")); err != nil {
		return h, "", restored, fmt.Errorf("put the restored state in its place: %w", err)
	}
	return h, id, restored, syncDirectory(dir)
}

// emptyForRestore refuses a directory that has anything in it. What an interrupted restore left is made anew.
func emptyForRestore(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, restoringDir)); err == nil {
		for _, name := range []string{restoringDir, "LOCK", "store-id"} {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("remove what an interrupted restore left: %w", err)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		e := cluster.Errorf(cluster.ReasonBlocked, "%s is not empty (it holds %s): a restore makes a new controller; choose another directory, or set this one aside",
			dir, entries[0].Name())
		e.Blockers = []string{dir + " is not empty"}
		return e
	}
	return nil
}
