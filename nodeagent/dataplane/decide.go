package dataplane

import (
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// action is what a partition's worker does next with its batch.
type action uint8

const (
	// actSend appends the batch to its own partition.
	actSend action = iota + 1
	// actReroute appends it to another living partition of the topic.
	actReroute
	// actWait waits for a change of the routes, or until the decision's time.
	actWait
	// actDiscard drops the batch: its topic is deleted.
	actDiscard
)

// attempt is what a worker remembers of its efforts. The zero value is a partition in good health. It
// outlives a batch: while a partition is stuck, the next batch is rerouted at once.
type attempt struct {
	// since is when the present trouble began; zero in good health.
	since time.Time
	// owner and epoch are the route that the last refusal was about.
	owner cluster.NodeID
	epoch cluster.Epoch
	// failures counts the refusals of that route, retryAt is when to ask it again.
	failures int
	retryAt  time.Time
	// overload says that the last refusal was LIMIT: other partitions must not get the load as well.
	overload bool
	// rerouteFailures and rerouteAt are the same for other partitions.
	rerouteFailures int
	rerouteAt       time.Time
	// hintOwner and hintEpoch are what a refusal said about the present owner.
	hintOwner cluster.NodeID
	hintEpoch cluster.Epoch
}

// situation is what a decision looks at besides the attempt.
type situation struct {
	now time.Time
	// gone says that the topic is deleted.
	gone bool
	// known says that route is known.
	known bool
	route Route
	// peerRetryAt is when the owner may be asked again, when it does not answer; zero when it does.
	peerRetryAt time.Time
	// others says that the topic has other partitions that are alive and not known to be stuck.
	others bool
}

// decision is an action, and for actWait its end.
type decision struct {
	action action
	until  time.Time
}

// Waiting is never endless, since a change could be missed only by a bug, and a probe is cheap.
const (
	maxWait       = time.Second
	minBackoff    = 2 * time.Millisecond
	maxBackoff    = time.Second
	maxBackoffExp = 9
)

func backoff(failures int) time.Duration {
	return min(minBackoff<<min(failures-1, maxBackoffExp), maxBackoff)
}

// decide says what to do next. Pure; the attempt returned has the trouble's begin noted.
func decide(a attempt, s situation, rerouteAfter time.Duration) (decision, attempt) {
	if s.gone {
		return decision{action: actDiscard}, a
	}
	if !s.known {
		return decision{action: actWait, until: s.now.Add(maxWait)}, a
	}
	retryAt := s.now
	if a.failures > 0 && a.owner == s.route.Owner && a.epoch == s.route.Epoch {
		// The route is the one that refused. A new route is tried at once.
		retryAt = a.retryAt
	}
	if !s.route.Alive {
		retryAt = s.now.Add(maxWait)
	} else if s.peerRetryAt.After(retryAt) {
		retryAt = s.peerRetryAt
	}
	if !retryAt.After(s.now) {
		return decision{action: actSend}, a
	}
	if a.since.IsZero() {
		a.since = s.now
	}
	until := minTime(retryAt, s.now.Add(maxWait))
	if s.others && !a.overload {
		at := a.since.Add(rerouteAfter)
		if a.rerouteAt.After(at) {
			at = a.rerouteAt
		}
		if !at.After(s.now) {
			return decision{action: actReroute}, a
		}
		until = minTime(until, at)
	}
	return decision{action: actWait, until: until}, a
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// verdict is how an append ended.
type verdict uint8

const (
	// appended: acknowledged in time.
	appended verdict = iota + 1
	// refused: nothing of the batch was written.
	refused
	// unknown: it may have been written; it is sent again.
	unknown
)

// result is the end of an append.
type result struct {
	verdict verdict
	reason  cluster.Reason
	// owner and epoch come with NOT_OWNER, when the refusing node knows.
	owner cluster.NodeID
	epoch cluster.Epoch
	err   error
}

// judge turns an acknowledgement that came too late into an unknown outcome.
//
// Invariant I10: the owner checked its lease before it answered, but an answer that was on its way for
// longer than the lease may come after the owner was declared dead and its partition promoted elsewhere.
func judge(r result, sent, now time.Time, leaseTTL time.Duration) result {
	if r.verdict == appended && now.Sub(sent) > leaseTTL {
		return result{verdict: unknown, err: cluster.Errorf(cluster.ReasonNoLeader,
			"the acknowledgement took %s, longer than lease_ttl, %s", now.Sub(sent), leaseTTL)}
	}
	return r
}

// after returns the attempt after an append to the partition itself by way of route.
func (a attempt) after(r result, route Route, now time.Time) attempt {
	if r.verdict == appended {
		return attempt{}
	}
	if a.since.IsZero() {
		a.since = now
	}
	if a.owner != route.Owner || a.epoch != route.Epoch {
		a.owner, a.epoch, a.failures = route.Owner, route.Epoch, 0
	}
	a.failures++
	a.retryAt = now.Add(backoff(a.failures))
	a.overload = r.reason == cluster.ReasonLimit
	if r.reason == cluster.ReasonNotOwner && r.owner != "" && r.epoch > route.Epoch {
		a.hintOwner, a.hintEpoch = r.owner, r.epoch
	}
	return a
}

// afterReroute returns the attempt after an append to another partition.
func (a attempt) afterReroute(r result, now time.Time) attempt {
	if r.verdict == appended {
		a.rerouteFailures, a.rerouteAt = 0, time.Time{}
		return a
	}
	a.rerouteFailures++
	a.rerouteAt = now.Add(backoff(a.rerouteFailures))
	return a
}
