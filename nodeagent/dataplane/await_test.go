package dataplane

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestTopicThatWasJustCreatedIsWaitedFor: whoever created a topic may use it before every agent has heard of it. One that
// never was is told in bounded time, and an agent without a view does not say that anything is missing.
func TestTopicThatWasJustCreatedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRouter()
		if _, err := r.Await(t.Context(), "orders"); cluster.ReasonOf(err) != cluster.ReasonNoLeader {
			t.Errorf("without a view: %v", err)
		}
		r.Apply(true, 5, nil)
		begin := time.Now()
		if _, err := r.Await(t.Context(), "nothing"); cluster.ReasonOf(err) != cluster.ReasonNotFound || time.Since(begin) != topicWait {
			t.Errorf("an unknown topic after %s: %v", time.Since(begin), err)
		}
		found := make(chan cluster.TopicID)
		go func() {
			topic, _ := r.Await(t.Context(), "orders")
			found <- topic.ID
		}()
		synctest.Wait()
		r.Apply(false, 6, []cluster.Change{nodeChange("a", "a:1", cluster.NodeAlive)})
		synctest.Wait()
		r.Apply(false, 7, []cluster.Change{topicChange(7, "orders", 3)})
		if id := <-found; id != 7 {
			t.Errorf("a topic that comes: found %d", id)
		}
	})
}
