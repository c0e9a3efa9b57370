package controller

import (
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// tooManyAway says whether so many nodes are dead or silent that nothing moves for balance: what looks like many dead
// nodes is often a network, and ends soon. The caller holds the soft state's lock.
func (c *Controller) tooManyAway(w world, now time.Time) bool {
	s := &c.soft
	s.away = 0
	for _, n := range w.nodes {
		if n.Status != cluster.NodeAlive || s.silent(s.of(n.ID), now, c.cfg.LeaseTTL) {
			s.away++
		}
	}
	return s.away*100 > int(w.settings.MaxAwayPercent)*len(w.nodes)
}

// judgeHold says what is kept from moving for balance, and why. The caller holds the soft state's lock.
func (s *soft) judgeHold(j *judge, w world) {
	if s.onHold > 0 {
		j.add(Degraded, "naradctl-plane cluster members",
			"rebalancing holds: %d of %d nodes are dead or silent (max_away_percent=%d); %d moves wait, drains go on",
			s.away, len(w.nodes), w.settings.MaxAwayPercent, s.onHold)
	}
	if s.cooling > 0 {
		j.add(Moving, "", "%d partitions that should move for balance moved a moment ago and rest (move_cooldown=%s)",
			s.cooling, w.settings.MoveCooldown)
	}
}
