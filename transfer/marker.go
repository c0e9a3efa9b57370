package transfer

import (
	"encoding/json"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Marker is an outbound marker: from when it is durable, the node knows that its copy may be taken over by
// the move. It belongs to one copy.
type Marker struct {
	Partition   cluster.PartitionID `json:"partition"`
	MoveID      cluster.MoveID      `json:"move_id"`
	Destination cluster.NodeID      `json:"destination"`
	// Identity is the copy's.
	Identity store.Identity `json:"identity"`
	// SalvageAt is how far the copy was salvaged; zero before. Salvaged says that all of it was.
	SalvageAt cluster.Offset `json:"salvage_at,omitempty"`
	Salvaged  bool           `json:"salvaged,omitempty"`
	// Damage says what could not be read for it; such a copy is never removed without people.
	Damage string `json:"damage,omitempty"`
}

const (
	outboundPrefix = "outbound/"
	movePrefix     = "move/"
	// markerVersion is the first byte of an encoded marker. Version 1: JSON follows.
	markerVersion = 1
)

func journalKey(prefix string, p cluster.PartitionID, move cluster.MoveID) string {
	return fmt.Sprintf("%s%d/%d/%d", prefix, p.Topic, p.Index, move)
}

func (m Marker) key() string { return journalKey(outboundPrefix, m.Partition, m.MoveID) }

func (m Marker) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	return append([]byte{markerVersion}, b...), err
}

func decodeMarker(b []byte) (Marker, error) {
	var m Marker
	if len(b) == 0 || b[0] != markerVersion {
		return m, cluster.Errorf(cluster.ReasonCorrupt, "outbound marker: unknown format")
	}
	if err := json.Unmarshal(b[1:], &m); err != nil {
		return m, cluster.Errorf(cluster.ReasonCorrupt, "outbound marker: %v", err)
	}
	if m.MoveID == 0 || m.Partition.Topic == 0 {
		return m, cluster.Errorf(cluster.ReasonCorrupt, "outbound marker without partition or move")
	}
	return m, nil
}
