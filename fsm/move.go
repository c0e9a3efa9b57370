package fsm

import (
	"crypto/subtle"
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

func partitionOf(r *storagev1.PartitionRef) cluster.PartitionID {
	return cluster.PartitionID{Topic: cluster.TopicID(r.GetTopicId()), Index: r.GetIndex()}
}

func (st *state) noPartition(p cluster.PartitionID) Result {
	return refused(cluster.NotFound("partition %s does not exist", st.partitionName(p)))
}

// mismatch refuses a command about a move that is not the present one.
func (st *state) mismatch(a cluster.Assignment, move cluster.MoveID) Result {
	err := cluster.Errorf(cluster.ReasonMoveMismatch, "move %d of %s is not current (current: %d)",
		move, st.partitionName(a.Partition), a.MoveID)
	err.Assignment, err.MoveID = &a, move
	r := Result{Assignment: &a, Err: err}
	if o, ok := st.outcomes[outcomeKey{a.Partition, move}]; ok {
		err.Outcome, r.Outcome = &o, &o
	}
	return r
}

func (st *state) setTarget(c *storagev1.SetTarget) Result {
	p, target := partitionOf(c.GetPartition()), cluster.NodeID(c.GetTarget())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if string(a.Owner) != c.GetExpectOwner() || string(a.Target) != c.GetExpectTarget() || uint64(a.Epoch) != c.GetExpectEpoch() {
		err := cluster.Errorf(cluster.ReasonStaleEpoch, "partition %s is owned by %s with target %q at epoch %d, not as expected",
			st.partitionName(p), a.Owner, a.Target, a.Epoch)
		err.Assignment = &a
		return Result{Assignment: &a, Err: err}
	}
	if target == a.Owner {
		return refused(cluster.Invalid("target", "%s owns partition %s already", target, st.partitionName(p)))
	}
	if target == a.Target {
		return refused(cluster.Invalid("target", "%s is the target of partition %s already", target, st.partitionName(p)))
	}
	if err := st.checkReceiver(target); err != nil {
		return refused(err)
	}
	if err := st.checkSource(a); err != nil {
		return refused(err)
	}
	if a.Unconfirmed {
		return refused(st.unconfirmed(a))
	}
	if a.Moving() {
		st.endMove(a, cluster.OutcomeCancelled, cluster.Outcome{Epoch: a.Epoch + 1})
	}
	a = stable(a)
	a.Target, a.MoveID = target, cluster.MoveID(st.next)
	a.Reason, a.MoveStartedAt = c.GetReason(), st.now
	st.putAssignment(a)
	if st.byOperator() {
		// What the planner does with single partitions is in the history of moves: it would push
		// everything else out of the events.
		st.event(cluster.EventMoveStarted, st.partitionName(p), c.GetReason(),
			fmt.Sprintf("move %d from %s to %s", a.MoveID, a.Owner, a.Target), a.Owner, a.Target)
	}
	return Result{Value: uint64(a.MoveID), Assignment: &a}
}

// checkSource refuses a move whose source is dead. A move that runs is not retargeted then while its
// target lives: the target may hold the last copy.
func (st *state) checkSource(a cluster.Assignment) *cluster.Error {
	if st.nodes[a.Owner].Maintenance {
		err := cluster.Errorf(cluster.ReasonBlocked, "partition %s: owner %s is in maintenance (override: cluster maintenance stop %s)",
			st.partitionName(a.Partition), a.Owner, a.Owner)
		err.Blockers = []string{string(a.Owner) + " is in maintenance"}
		return err
	}
	if st.nodes[a.Owner].Status != cluster.NodeDead {
		return nil
	}
	if a.Moving() && st.nodes[a.Target].Status == cluster.NodeDead {
		return nil
	}
	err := cluster.Errorf(cluster.ReasonBlocked, "partition %s: owner %s is dead", st.partitionName(a.Partition), a.Owner)
	err.Blockers = []string{"owner dead"}
	return err
}

// unconfirmed refuses what needs an owner.
func (st *state) unconfirmed(a cluster.Assignment) *cluster.Error {
	err := cluster.Errorf(cluster.ReasonBlocked, "partition %s waits for its confirmation: the controllers were restored from a backup, and not all "+
		"nodes that may hold it have said so (override: cluster partition adopt %s --from NODE)", st.partitionName(a.Partition), st.partitionName(a.Partition))
	err.Blockers = []string{"not confirmed since the restore"}
	return err
}

// stable returns a without a move, one epoch later.
func stable(a cluster.Assignment) cluster.Assignment {
	return cluster.Assignment{
		Partition: a.Partition, Owner: a.Owner, OwnerEpoch: a.OwnerEpoch, Opened: a.Opened, Epoch: a.Epoch + 1,
		MovedAt: a.MovedAt, Unconfirmed: a.Unconfirmed, Fresh: a.Fresh,
	}
}

// endMove records how a's move ended. Only the fields of o that differ by kind need to be set.
func (st *state) endMove(a cluster.Assignment, kind cluster.OutcomeKind, o cluster.Outcome) cluster.Outcome {
	o.Partition, o.MoveID, o.Kind = a.Partition, a.MoveID, kind
	o.Source, o.Destination = a.Owner, a.Target
	// To have been cancelled is what a forgotten move amounts to for both of its sides: the owner goes on, the
	// target lets go. So one such record of a partition is kept, for who asks soon; a source that never learned of
	// its move would report none of them.
	for _, old := range st.outcomesOf(a.Partition, func(x cluster.Outcome) bool {
		return x.Kind == cluster.OutcomeCancelled
	}) {
		st.dropOutcome(old)
	}
	st.putOutcome(o)
	st.putEnded(st.endedRecordOf(a, kind))
	return o
}

func (st *state) endedRecordOf(a cluster.Assignment, kind cluster.OutcomeKind) cluster.MoveRecord {
	return cluster.MoveRecord{
		Partition: a.Partition, MoveID: a.MoveID, Kind: kind, Source: a.Owner, Destination: a.Target,
		Reason: a.Reason, StartedAt: a.MoveStartedAt, EndedAt: st.now,
	}
}

func (st *state) cancelMove(c *storagev1.CancelMove) Result {
	p, move := partitionOf(c.GetPartition()), cluster.MoveID(c.GetMoveId())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if !a.Moving() && move == 0 {
		return refused(cluster.NotFound("partition %s has no move", st.partitionName(p)))
	}
	if move != 0 && move != a.MoveID {
		if o, ok := st.outcomes[outcomeKey{p, move}]; ok {
			return Result{Value: uint64(move), Assignment: &a, Outcome: &o}
		}
		return st.mismatch(a, move)
	}
	o := st.endMove(a, cluster.OutcomeCancelled, cluster.Outcome{Epoch: a.Epoch + 1})
	after := stable(a)
	st.putAssignment(after)
	if st.byOperator() {
		st.event(cluster.EventMoveCancelled, st.partitionName(p), c.GetReason(),
			fmt.Sprintf("move %d from %s to %s; %s stays the owner", a.MoveID, a.Owner, a.Target, a.Owner), a.Owner, a.Target)
	}
	return Result{Value: uint64(a.MoveID), Assignment: &after, Outcome: &o}
}

func (st *state) grantHandoff(c *storagev1.GrantHandoff) Result {
	p, move := partitionOf(c.GetPartition()), cluster.MoveID(c.GetMoveId())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if !a.Moving() || a.MoveID != move {
		return st.mismatch(a, move)
	}
	var hash cluster.NonceHash
	if copy(hash[:], c.GetNonceHash()) != len(hash) || len(c.GetNonceHash()) != len(hash) || hash == (cluster.NonceHash{}) {
		return refused(cluster.Invalid("nonce_hash", "must be %d bytes, not all zero", len(hash)))
	}
	incarnation := cluster.Incarnation(c.GetIncarnation())
	n := st.nodes[a.Owner]
	switch {
	case string(a.Owner) != c.GetNodeId():
		return refused(st.notOwner(a))
	case n.Status != cluster.NodeAlive || n.Incarnation != incarnation:
		return refused(cluster.Errorf(cluster.ReasonStaleIncarnation,
			"node %s is %s with incarnation %d, not %d", n.ID, n.Status, n.Incarnation, incarnation))
	case a.Granted && a.GrantIncarnation == incarnation && a.NonceHash == hash:
		return Result{Value: uint64(a.Handoff), Assignment: &a}
	case a.Granted:
		err := cluster.Errorf(cluster.ReasonBlocked, "handoff %d of move %d of %s is live; revoke it first", a.Handoff, move, st.partitionName(p))
		err.Handoff, err.MoveID, err.Assignment = a.Handoff, move, &a
		err.Blockers = []string{fmt.Sprintf("handoff %d is live", a.Handoff)}
		return Result{Assignment: &a, Err: err}
	}
	a.Handoff++
	a.Granted, a.NonceHash, a.GrantIncarnation = true, hash, incarnation
	a.Epoch++
	st.putAssignment(a)
	return Result{Value: uint64(a.Handoff), Assignment: &a}
}

func (st *state) notOwner(a cluster.Assignment) *cluster.Error {
	err := cluster.Errorf(cluster.ReasonNotOwner, "partition %s is owned by %s", st.partitionName(a.Partition), a.Owner)
	err.Owner, err.OwnerAddress, err.Epoch, err.Assignment = a.Owner, st.nodes[a.Owner].Address, a.Epoch, &a
	return err
}

// revokeHandoff makes every later flip of a handoff impossible. Each of its answers is final.
func (st *state) revokeHandoff(c *storagev1.RevokeHandoff) Result {
	p, move, h := partitionOf(c.GetPartition()), cluster.MoveID(c.GetMoveId()), cluster.Handoff(c.GetHandoff())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if !a.Moving() || a.MoveID != move {
		if o, ok := st.outcomes[outcomeKey{p, move}]; ok {
			return Result{Value: uint64(h), Assignment: &a, Outcome: &o}
		}
		return st.mismatch(a, move)
	}
	if h == 0 || h > a.Handoff {
		return refused(cluster.Invalid("handoff", "%d was never granted (latest: %d)", h, a.Handoff))
	}
	if h == a.Handoff && a.Granted {
		a.Granted = false
		a.Epoch++
		st.putAssignment(a)
	}
	return Result{Value: uint64(h), Assignment: &a}
}

func (st *state) completeMove(c *storagev1.CompleteMove) Result {
	p, move, h := partitionOf(c.GetPartition()), cluster.MoveID(c.GetMoveId()), cluster.Handoff(c.GetHandoff())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if !a.Moving() || a.MoveID != move {
		if o, ok := st.outcomes[outcomeKey{p, move}]; ok && o.Kind == cluster.OutcomeFlipped && o.Handoff == h {
			return Result{Value: uint64(h), Assignment: &a, Outcome: &o}
		}
		return st.mismatch(a, move)
	}
	var nonce cluster.Nonce
	copy(nonce[:], c.GetNonce())
	hash := nonce.Hash()
	// Invariant I5, I6: without a live grant, and the nonce that only the frozen source's manifest holds,
	// nobody flips (C05, C08, C82).
	if !a.Granted || a.Handoff != h || len(c.GetNonce()) != len(nonce) ||
		subtle.ConstantTimeCompare(hash[:], a.NonceHash[:]) != 1 {
		err := cluster.Errorf(cluster.ReasonHandoffRevoked,
			"handoff %d of move %d of %s is not the live grant (latest: %d, live: %t), or the nonce differs",
			h, move, st.partitionName(p), a.Handoff, a.Granted)
		err.Assignment, err.MoveID, err.Handoff = &a, move, h
		return Result{Assignment: &a, Err: err}
	}
	o := st.endMove(a, cluster.OutcomeFlipped, cluster.Outcome{Handoff: h, Epoch: a.Epoch + 1})
	after := st.flip(a)
	return Result{Value: uint64(h), Assignment: &after, Outcome: &o}
}

// flip makes the target the owner.
//
// Invariant I1: only here, in forgetNode and in confirm (after a restore) does an owner change.
func (st *state) flip(a cluster.Assignment) cluster.Assignment {
	after := stable(a)
	after.Owner, after.OwnerEpoch, after.Opened, after.MovedAt, after.Fresh = a.Target, after.Epoch, false, st.now, 0
	st.putAssignment(after)
	return after
}

// forceCompleteMove flips away from a dead source. Its gates are looked at here, when the entry is
// applied, not when it was proposed (C78).
func (st *state) forceCompleteMove(c *storagev1.ForceCompleteMove) Result {
	p, move := partitionOf(c.GetPartition()), cluster.MoveID(c.GetMoveId())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	if !a.Moving() || a.MoveID != move {
		if o, ok := st.outcomes[outcomeKey{p, move}]; ok && o.Kind == cluster.OutcomeForced {
			return Result{Assignment: &a, Outcome: &o}
		}
		return st.mismatch(a, move)
	}
	source := st.nodes[a.Owner]
	// Invariant I10: only a source that is out of the game, in that very incarnation, is passed over.
	if source.Status != cluster.NodeDead {
		return st.gate(a, "source_dead", "its owner %s is alive with incarnation %d", source.ID, source.Incarnation)
	}
	if source.Incarnation != cluster.Incarnation(c.GetSourceIncarnation()) {
		return st.gate(a, "source_incarnation", "its owner %s died as incarnation %d, the copy is from %d",
			source.ID, source.Incarnation, c.GetSourceIncarnation())
	}
	if source.Maintenance {
		return st.gate(a, "maintenance", "its owner %s is in maintenance", source.ID)
	}
	// A new leader that never heard the node knows nothing of what it acknowledged.
	if source.DeadHWMsUnknown && !c.GetAcceptLoss() {
		return st.gate(a, "completeness", "the copy ends at offset %d, and what owner %s had acknowledged was not known to the controller that declared it dead",
			c.GetStagedLeo(), source.ID)
	}
	leo, need := c.GetStagedLeo(), max(c.GetReadHwm(), deadHWM(source, p))
	var missing uint64
	if leo < need {
		if !c.GetAcceptLoss() {
			return st.gate(a, "completeness", "the copy ends at offset %d, the last known high watermark is %d: %d records may be missing",
				leo, need, need-leo)
		}
		missing = need - leo
	}
	o := st.endMove(a, cluster.OutcomeForced, cluster.Outcome{
		Epoch: a.Epoch + 1, PromotedLEO: cluster.Offset(leo), MissingAtMost: missing})
	after := st.flip(a)
	if c.GetAcceptLoss() {
		st.keepEarlier(after, o.MoveID)
	}
	st.event(cluster.EventMoveForced, st.partitionName(p), fmt.Sprintf("owner %s is dead", a.Owner),
		fmt.Sprintf("%s promoted its copy up to offset %d; records missing at most: %d", a.Target, leo, missing), a.Owner, a.Target)
	return Result{Assignment: &after, Outcome: &o}
}

// keepEarlier is for an owner that may not have all that earlier owners had. Their copies are salvaged before they go.
//
// Invariant I9: without it they would be reclaimed as if the present copy descended from theirs.
func (st *state) keepEarlier(a cluster.Assignment, but cluster.MoveID) {
	for _, o := range st.outcomesWhere(func(o cluster.Outcome) bool {
		return o.Partition == a.Partition && o.MoveID != but && o.Kind == cluster.OutcomeFlipped
	}) {
		o.Kind, o.Opened, o.Epoch = cluster.OutcomeForced, false, a.OwnerEpoch
		st.putOutcome(o)
	}
}

func (st *state) gate(a cluster.Assignment, field, format string, args ...any) Result {
	err := cluster.Errorf(cluster.ReasonGate, "partition %s can't be promoted: %s", st.partitionName(a.Partition), fmt.Sprintf(format, args...))
	err.Field, err.Assignment, err.MoveID = field, &a, a.MoveID
	return Result{Assignment: &a, Err: err}
}

func deadHWM(n cluster.Node, p cluster.PartitionID) uint64 {
	var hwm uint64
	for _, h := range n.DeadHWMs {
		if h.Partition == p {
			hwm = max(hwm, uint64(h.Offset))
		}
	}
	return hwm
}

func (st *state) reportOpened(c *storagev1.ReportOpened) Result {
	p, id := partitionOf(c.GetPartition()), cluster.NodeID(c.GetNodeId())
	epoch, move := cluster.Epoch(c.GetEpoch()), cluster.MoveID(c.GetMoveId())
	a, ok := st.assignment(p)
	if !ok {
		return st.noPartition(p)
	}
	current := a.Owner == id && a.OwnerEpoch == epoch
	// C80: only a report about this very ownership lets the source delete its copy. An owner that was
	// opened vouches for all ownerships before it, since its copy descends from theirs.
	for _, o := range st.outcomesOf(p, func(o cluster.Outcome) bool {
		return o.Kind != cluster.OutcomeCancelled && !o.Opened &&
			(o.Destination == id && o.Epoch == epoch || current && o.Epoch <= epoch)
	}) {
		o.Opened = true
		st.putOutcome(o)
	}
	if current && !a.Opened {
		a.Opened = true
		st.putAssignment(a)
	}
	if !current && len(st.changes) == 0 {
		return refused(st.notOwner(a))
	}
	if move != 0 && c.GetStats() != nil && len(st.changes) > 0 {
		st.measured(p, move, stats(c.GetStats()))
	}
	return Result{Assignment: &a}
}

func (st *state) reportReclaimed(c *storagev1.ReportReclaimed) Result {
	p, move := partitionOf(c.GetPartition()), cluster.MoveID(c.GetMoveId())
	o, ok := st.outcomes[outcomeKey{p, move}]
	if !ok {
		return Result{}
	}
	if string(o.Source) != c.GetNodeId() {
		return refused(cluster.Invalid("node_id", "%s is not the source of move %d of %s (%s is)", c.GetNodeId(), move, st.partitionName(p), o.Source))
	}
	// Invariant I9: nothing may be gone before the new owner has opened its copy.
	if o.Kind != cluster.OutcomeCancelled && !o.Opened {
		err := cluster.Errorf(cluster.ReasonBlocked, "move %d of %s: %s has not opened its copy", move, st.partitionName(p), o.Destination)
		err.Blockers = []string{"not opened"}
		return refused(err)
	}
	st.dropOutcome(o)
	return Result{}
}
