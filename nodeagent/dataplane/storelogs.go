package dataplane

import (
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/nodeagent/partitionlog"
)

// StoreLogs returns the logs of the embedded store.
func StoreLogs(s *partitionlog.Store) Logs { return storeLogs{s} }

type storeLogs struct{ store *partitionlog.Store }

func (s storeLogs) Log(p cluster.PartitionID) (Log, error) {
	l, err := s.store.Log(p)
	if err != nil {
		return nil, err
	}
	return l, nil
}
