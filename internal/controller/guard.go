package controller

import (
	"fmt"
	"strings"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// voterGuard says why the voters in remove may not be removed; nil when they may. Two guards: never
// below minVoters, and never so that those which are left and active are no majority of those which
// are left. With force only the second one holds. self counts as active.
func voterGuard(members []consensus.MemberStatus, self consensus.ID, remove map[consensus.ID]bool, minVoters uint32, force bool) *cluster.Error {
	voters, left, active := 0, 0, 0
	var names []string
	for _, m := range members {
		if m.Role != consensus.Voter {
			continue
		}
		voters++
		if remove[m.ID] {
			names = append(names, m.Name)
			continue
		}
		left++
		if m.Active || m.ID == self {
			active++
		}
	}
	if len(names) == 0 {
		return nil
	}
	blocked := func(sentence, override string) *cluster.Error {
		err := cluster.Errorf(cluster.ReasonBlocked, "%s%s", sentence, override)
		err.Blockers = []string{sentence}
		return err
	}
	who := strings.Join(names, ", ")
	switch {
	case left == 0:
		return blocked(fmt.Sprintf("min_voters=%d, voters=%d, removing %s leaves none", minVoters, voters, who), "")
	case left < int(minVoters) && !force:
		return blocked(fmt.Sprintf("min_voters=%d, voters=%d, removing %s leaves %d", minVoters, voters, who, left),
			" (override: --force)")
	case active < left/2+1:
		return blocked(fmt.Sprintf("voters=%d, removing %s leaves %d of which %d are active: no majority", voters, who, left, active), "")
	}
	return nil
}

// failureTolerance is how many voters may fail with a leader still elected.
func failureTolerance(members []consensus.MemberStatus) int {
	voters := 0
	for _, m := range members {
		if m.Role == consensus.Voter {
			voters++
		}
	}
	if voters == 0 {
		return 0
	}
	return (voters - 1) / 2
}

// memberByName finds a member; false when there is none.
func memberByName(st consensus.Status, name cluster.ControllerName) (consensus.MemberStatus, bool) {
	for _, m := range st.Members {
		if m.Name == string(name) {
			return m, true
		}
	}
	return consensus.MemberStatus{}, false
}

func memberByID(st consensus.Status, id consensus.ID) (consensus.MemberStatus, bool) {
	for _, m := range st.Members {
		if m.ID == id {
			return m, true
		}
	}
	return consensus.MemberStatus{}, false
}
