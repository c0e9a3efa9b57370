package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// faults collects what is wrong, each beginning with its key.
type faults []error

func (f *faults) add(key, format string, args ...any) {
	*f = append(*f, cluster.Invalid(key, format, args...))
}

func (f faults) err() error { return errors.Join(f...) }

// ValidateController returns every fault of what a controller uses.
func (c Config) ValidateController() error {
	var f faults
	c.common(&f)
	cc := c.Controller
	if err := cluster.ValidateControllerName(cluster.ControllerName(cc.Name)); err != nil {
		f.add("controller.name", "%q is not a name: 1 to 63 of a-z, 0-9, '.', '-', beginning and ending with a letter or digit", cc.Name)
	}
	c.addresses(&f, "controller", cc.Listen, cc.Advertise)
	if cc.DataDir == "" {
		f.add("controller.data_dir", "must not be empty")
	}
	cc.peers(&f)
	if cc.LeaseTTL < 100*time.Millisecond {
		f.add("controller.lease_ttl", "must be at least 100ms, is %s", cc.LeaseTTL)
	}
	if cc.DeadAfter <= 2*cc.LeaseTTL {
		// Invariant I10: a node must have stopped acknowledging long before it is declared dead.
		f.add("controller.dead_after", "must be more than twice controller.lease_ttl (%s), is %s", cc.LeaseTTL, cc.DeadAfter)
	}
	if cc.Tick < time.Millisecond || cc.Tick > 10*time.Second {
		f.add("controller.tick", "must be 1ms to 10s, is %s", cc.Tick)
	}
	if cc.HeartbeatTicks < 1 {
		f.add("controller.heartbeat_ticks", "must be at least 1, is %d", cc.HeartbeatTicks)
	}
	if cc.ElectionTicks < 5*cc.HeartbeatTicks {
		f.add("controller.election_ticks", "must be at least 5 times controller.heartbeat_ticks (%d), is %d", cc.HeartbeatTicks, cc.ElectionTicks)
	}
	if cc.PlanInterval < 10*time.Millisecond {
		f.add("controller.plan_interval", "must be at least 10ms, is %s", cc.PlanInterval)
	}
	return f.err()
}

// peers checks the lists of other controllers. A controller finds itself in peers by name, and by address
// it must not find itself anywhere else, so that it never dials itself.
func (cc Controller) peers(f *faults) {
	if len(cc.Peers) > 0 && len(cc.Join) > 0 {
		f.add("controller.join", "must be empty when controller.peers is set: a controller either founds a cluster or joins one")
	}
	self := cc.AdvertiseAddress()
	var names, addrs []string
	found := false
	for _, p := range cc.ParsePeers() {
		if err := cluster.ValidateControllerName(p.Name); err != nil || checkAddress(p.Address) != nil {
			f.add("controller.peers", "%q is not name=host:port", string(p.Name)+"="+p.Address)
			continue
		}
		if slices.Contains(names, string(p.Name)) || slices.Contains(addrs, p.Address) {
			f.add("controller.peers", "%s=%s is listed twice, by name or by address", p.Name, p.Address)
		}
		names, addrs = append(names, string(p.Name)), append(addrs, p.Address)
		switch {
		case string(p.Name) == cc.Name:
			found = true
			if p.Address != self {
				f.add("controller.peers", "lists this controller, %s, at %s, but others are to dial %s (controller.advertise)", cc.Name, p.Address, self)
			}
		case p.Address == self:
			f.add("controller.peers", "gives %s the address of this controller, %s", p.Name, self)
		}
	}
	if len(cc.Peers) > 0 && !found {
		f.add("controller.peers", "does not list this controller, %s", cc.Name)
	}
	for _, a := range cc.Join {
		switch {
		case checkAddress(a) != nil:
			f.add("controller.join", "%q is not host:port", a)
		case a == self:
			f.add("controller.join", "%s is this controller's own address", a)
		}
	}
}

// ValidateAgent returns every fault of what an agent uses.
func (c Config) ValidateAgent() error {
	var f faults
	c.common(&f)
	a := c.Agent
	if err := cluster.ValidateNodeID(cluster.NodeID(a.NodeID)); err != nil {
		f.add("agent.node_id", "%q is not a node id: 1 to 63 of a-z, 0-9, '.', '-', beginning and ending with a letter or digit", a.NodeID)
	}
	c.addresses(&f, "agent", a.Listen, a.Advertise)
	if a.DataDir == "" {
		f.add("agent.data_dir", "must not be empty")
	}
	if len(a.Controllers) == 0 {
		f.add("agent.controllers", "must name at least one controller")
	}
	self := a.AdvertiseAddress()
	for _, addr := range a.Controllers {
		switch {
		case checkAddress(addr) != nil:
			f.add("agent.controllers", "%q is not host:port", addr)
		case addr == self:
			f.add("agent.controllers", "%s is this agent's own address", addr)
		}
	}
	if a.CapacityWeight < 1 || a.CapacityWeight > cluster.MaxWeight {
		f.add("agent.capacity_weight", "must be 1 to %d, is %d", cluster.MaxWeight, a.CapacityWeight)
	}
	if a.Voter != "" && cluster.ValidateControllerName(cluster.ControllerName(a.Voter)) != nil {
		f.add("agent.voter", "%q is not a controller's name", a.Voter)
	}
	if a.HeartbeatInterval < 10*time.Millisecond || a.HeartbeatInterval > time.Minute {
		f.add("agent.heartbeat_interval", "must be 10ms to 1m, is %s", a.HeartbeatInterval)
	}
	if a.RerouteAfter < time.Millisecond || a.RerouteAfter > time.Minute {
		f.add("agent.reroute_after", "must be 1ms to 1m, is %s", a.RerouteAfter)
	}
	if a.SegmentBytes < 4<<10 {
		f.add("agent.segment_bytes", "must be at least 4096, is %d", a.SegmentBytes)
	}
	if a.IngressBytes < 8<<20 {
		f.add("agent.ingress_bytes", "must be at least 8388608, is %d", a.IngressBytes)
	}
	if a.MinDiskFree < 0 {
		f.add("agent.min_disk_free", "must not be negative, is %d", a.MinDiskFree)
	}
	return f.err()
}

func (c Config) common(f *faults) {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		f.add("log.level", "must be debug, info, warn or error, is %q", c.Log.Level)
	}
	if !slices.Contains([]string{"json", "console"}, c.Log.Format) {
		f.add("log.format", "must be json or console, is %q", c.Log.Format)
	}
	if t := c.TLS; t.Enabled() && (t.Cert == "" || t.Key == "" || t.CA == "") {
		f.add("tls", "needs all of tls.cert, tls.key and tls.ca, or none")
	}
	if e := c.Telemetry.OTLPEndpoint; e != "" {
		if u, err := url.Parse(e); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			f.add("telemetry.otlp_endpoint", "must be an http or https URL, is %q", e)
		}
	}
	if l := c.Debug.Listen; l != "" {
		if host, port, err := net.SplitHostPort(l); err != nil || !validPort(port, true) || !loopback(host) {
			f.add("debug.listen", "must be host:port on loopback, is %q: profiles are served without credentials", l)
		}
	}
	if c.Telemetry.Interval < time.Second {
		f.add("telemetry.interval", "must be at least 1s, is %s", c.Telemetry.Interval)
	}
	if c.Telemetry.Traces && c.Telemetry.OTLPEndpoint == "" {
		f.add("telemetry.traces", "needs telemetry.otlp_endpoint")
	}
}

// addresses checks where a daemon listens and what it tells others to dial.
func (c Config) addresses(f *faults, section, listen, advertise string) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || !validPort(port, true) {
		f.add(section+".listen", "%q is not host:port", listen)
		return
	}
	if !loopback(host) && !c.Insecure && !c.TLS.Enabled() {
		f.add(section+".listen", "%s can be reached by other hosts and tls is not set; "+
			"set tls.cert, tls.key and tls.ca, or insecure: true if the network is trusted, or listen on loopback", listen)
	}
	if advertise == "" {
		if unspecified(host) {
			f.add(section+".advertise", "must be set when %s.listen is %s: others can't dial an unspecified address", section, listen)
		}
		return
	}
	ahost, aport, err := net.SplitHostPort(advertise)
	switch {
	case err != nil || ahost == "" || !validPort(aport, port == "0"):
		f.add(section+".advertise", "%q is not host:port", advertise)
	case unspecified(ahost):
		f.add(section+".advertise", "%s is an unspecified address; others can't dial it", advertise)
	case loopback(ahost) && !loopback(host) && !unspecified(host):
		f.add(section+".advertise", "%s is loopback, but %s.listen is %s", advertise, section, listen)
	}
}

// AdvertiseAddress is what others dial.
func (cc Controller) AdvertiseAddress() string { return firstOf(cc.Advertise, cc.Listen) }

// AdvertiseAddress is what others dial.
func (a Agent) AdvertiseAddress() string { return firstOf(a.Advertise, a.Listen) }

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// checkAddress says what is wrong with an address to dial.
func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if unspecified(host) || !validPort(port, false) {
		return fmt.Errorf("%q is not host:port", addr)
	}
	return nil
}

func validPort(s string, zero bool) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && (zero || n > 0)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func unspecified(host string) bool {
	if host == "" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}
