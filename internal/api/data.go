package api

import (
	"net/http"
	"strings"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/rest"
)

// maxNamedAgents bounds how many agents an answer names.
const maxNamedAgents = 20

// data answers requests for records: the agents serve them.
func (s *Server) data(w http.ResponseWriter, r *http.Request) {
	var addrs []string
	s.deps.Machine.Read(func(rd fsm.Reader) {
		for _, n := range rd.Nodes() {
			if n.Status == cluster.NodeAlive && !n.Draining && len(addrs) < maxNamedAgents {
				addrs = append(addrs, n.Address)
			}
		}
	})
	e := cluster.Errorf(cluster.ReasonNotOwner, "controllers serve no records, and no agent can be named: none is alive and stays")
	if len(addrs) > 0 {
		e = cluster.Errorf(cluster.ReasonNotOwner, "controllers serve no records; ask an agent: %s", strings.Join(addrs, ", "))
		e.OwnerAddress = addrs[0]
	}
	rest.WriteError(w, r, e)
}
