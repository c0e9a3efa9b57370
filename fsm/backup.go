package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// A backup file is: backupMagic; the length of the head as 4 bytes big-endian, and the head, a BackupHeader; a stream of
// Snapshot.WriteTo; the XXH3-64 of everything before, 8 bytes big-endian; and nothing after it.
const (
	backupMagic = "NPBACKUP"
	// backupFormat is the version of the file. Version 1: as above.
	backupFormat    = 1
	maxBackupHeader = 1 << 20
)

// BackupHeader says what a backup is of.
type BackupHeader struct {
	ClusterID cluster.ClusterID
	Revision  cluster.Revision
	CreatedAt time.Time
	// Controller wrote it, with a program of Version.
	Controller cluster.ControllerName
	Version    string
}

// WriteBackup writes the pinned state as a backup file. Its revision goes into the head.
func (s *Snapshot) WriteBackup(w io.Writer, h BackupHeader) error {
	head, err := proto.Marshal(&storagev1.BackupHeader{
		FormatVersion: backupFormat, ClusterId: string(h.ClusterID), Revision: uint64(s.revision),
		CreatedAt: nanos(h.CreatedAt), Controller: string(h.Controller), Version: h.Version,
	})
	if err != nil {
		return fmt.Errorf("encode the head of a backup: %w", err)
	}
	sum := xxh3.New()
	out := io.MultiWriter(w, sum)
	b := binary.BigEndian.AppendUint32([]byte(backupMagic), uint32(len(head)))
	if _, err := out.Write(append(b, head...)); err != nil {
		return err
	}
	if _, err := s.WriteTo(out); err != nil {
		return err
	}
	_, err = w.Write(value64(sum.Sum64()))
	return err
}

// VerifyBackup reads a backup file to its end and says what it is of, or what is wrong with it.
func VerifyBackup(r io.Reader) (BackupHeader, error) {
	return readBackup(r, func(_, _ []byte) error { return nil })
}

// readBackup calls pair with everything of the state. What it was called with counts only when readBackup returns no error.
func readBackup(r io.Reader, pair func(key, value []byte) error) (BackupHeader, error) {
	sum := xxh3.New()
	br := &hashingReader{r: bufio.NewReaderSize(r, 1<<16), h: sum}
	h, err := readBackupHead(br)
	if err != nil {
		return h, err
	}
	if err := readStream(br, pair); err != nil {
		return h, fmt.Errorf("read the backup: %w", err)
	}
	want := sum.Sum64()
	var tail [8]byte
	if _, err := io.ReadFull(br.r, tail[:]); err != nil {
		return h, fmt.Errorf("read the backup: its checksum is missing: %w", noEOF(err))
	}
	if got := binary.BigEndian.Uint64(tail[:]); got != want {
		return h, fmt.Errorf("read the backup: its checksum is %016x, the content's is %016x: the file is damaged", got, want)
	}
	if _, err := br.r.ReadByte(); !errors.Is(err, io.EOF) {
		return h, errors.New("read the backup: something follows its end: the file is damaged")
	}
	return h, nil
}

func readBackupHead(r io.Reader) (BackupHeader, error) {
	var h BackupHeader
	b := make([]byte, len(backupMagic)+4)
	if _, err := io.ReadFull(r, b); err != nil || string(b[:len(backupMagic)]) != backupMagic {
		return h, errors.New("this is no backup of a control plane: it was not written by \"cluster snapshot save\"")
	}
	n := binary.BigEndian.Uint32(b[len(backupMagic):])
	if n > maxBackupHeader {
		return h, fmt.Errorf("read the backup: a head of %d bytes is too long: the file is damaged", n)
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(r, raw); err != nil {
		return h, fmt.Errorf("read the backup: its head breaks off: %w", noEOF(err))
	}
	m := &storagev1.BackupHeader{}
	if err := proto.Unmarshal(raw, m); err != nil {
		return h, fmt.Errorf("read the backup: its head does not decode: %w", err)
	}
	if v := m.GetFormatVersion(); v != backupFormat {
		return h, fmt.Errorf("the backup has format %d, this program reads %d: use the version that wrote it (%s)", v, backupFormat, m.GetVersion())
	}
	return BackupHeader{
		ClusterID: cluster.ClusterID(m.GetClusterId()), Revision: cluster.Revision(m.GetRevision()), CreatedAt: fromNanos(m.GetCreatedAt()),
		Controller: cluster.ControllerName(m.GetController()), Version: m.GetVersion(),
	}, nil
}

func decode64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
