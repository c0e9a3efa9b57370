package config

import (
	"reflect"
	"strings"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Config is everything that is read at start. Each field's tags are its key and its description; the
// description ends up in the sample file and in the help of its flag.
type Config struct {
	Insecure   bool       `mapstructure:"insecure" desc:"Permit a listen address that other hosts can reach although tls is not set: only on a network that you trust."`
	TLS        TLS        `mapstructure:"tls" desc:"Mutual TLS between all parts, with one private authority. All three files, on all of them, or none. Whoever has a certificate of that authority may do everything."`
	Log        Log        `mapstructure:"log" desc:"Logs go to standard error."`
	Telemetry  Telemetry  `mapstructure:"telemetry" desc:"Metrics are on /metrics of each daemon; these keys push them, and traces, elsewhere too."`
	Debug      Debug      `mapstructure:"debug" desc:"For finding out what a daemon does with its time and memory."`
	Controller Controller `mapstructure:"controller" desc:"Used by naradctl-plane controller."`
	Agent      Agent      `mapstructure:"agent" desc:"Used by naradctl-plane agent."`
}

// TLS names the files of a part's credentials.
type TLS struct {
	Cert string `mapstructure:"cert" desc:"Certificate in PEM, for serving and for dialling; it names the advertised host. Read again when it changes."`
	Key  string `mapstructure:"key" desc:"The certificate's key in PEM. Read again when it changes."`
	CA   string `mapstructure:"ca" desc:"Certificates of the authority in PEM. Read at start."`
}

// Enabled reports whether TLS is asked for.
func (t TLS) Enabled() bool { return t != TLS{} }

// Log says what is logged and how.
type Log struct {
	Level  string `mapstructure:"level" desc:"debug, info, warn or error. Debug logs each message; it is for one host and some minutes."`
	Format string `mapstructure:"format" desc:"json or console."`
}

// Telemetry says where metrics and traces go.
type Telemetry struct {
	OTLPEndpoint string        `mapstructure:"otlp_endpoint" desc:"URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318. Empty pushes nothing."`
	Interval     time.Duration `mapstructure:"interval" desc:"How often metrics are pushed."`
	Traces       bool          `mapstructure:"traces" desc:"Also push traces to otlp_endpoint."`
}

// Debug says where profiles are served.
type Debug struct {
	Listen string `mapstructure:"listen" desc:"host:port on loopback that serves profiles under /debug/pprof/, without credentials. Empty serves none."`
}

// Controller configures a controller.
type Controller struct {
	Name      string `mapstructure:"name" desc:"The controller's name, unique in the cluster, for ever. Empty: the short host name."`
	Listen    string `mapstructure:"listen" desc:"host:port to listen on. A port of 0 takes a free one."`
	Advertise string `mapstructure:"advertise" desc:"host:port that others dial. Empty: the listen address, which must then name one address."`
	DataDir   string `mapstructure:"data_dir" desc:"Directory of the log and the state. Never shared, never copied to another controller."`

	Peers []string `mapstructure:"peers" desc:"The first controllers of a new cluster, as name=host:port, this one included, alike on all of them. Empty: a cluster of one. Ignored once the cluster exists."`
	Join  []string `mapstructure:"join" desc:"host:port of controllers of an existing cluster that this one is to join. Not together with peers."`

	LeaseTTL  time.Duration `mapstructure:"lease_ttl" desc:"How long a node may acknowledge writes to a partition that is being moved away without hearing from the leader. Longer rides out longer stalls and delays a forced promotion."`
	DeadAfter time.Duration `mapstructure:"dead_after" desc:"Silence after which a node is declared dead. More than twice lease_ttl, so that it has stopped acknowledging by then."`

	Tick           time.Duration `mapstructure:"tick" desc:"The consensus clock's tick."`
	ElectionTicks  int           `mapstructure:"election_ticks" desc:"Ticks without a leader before an election. Fewer fail over faster and elect needlessly on slow disks. At least 5 times heartbeat_ticks."`
	HeartbeatTicks int           `mapstructure:"heartbeat_ticks" desc:"Ticks between the leader's heartbeats."`
	PlanInterval   time.Duration `mapstructure:"plan_interval" desc:"How often the leader plans without a reason to. It plans at once when something changes."`
}

// Agent configures a node agent.
type Agent struct {
	NodeID            string   `mapstructure:"node_id" desc:"The node's name, unique in the cluster, for ever. Empty: the short host name."`
	Listen            string   `mapstructure:"listen" desc:"host:port to listen on. A port of 0 takes a free one."`
	Advertise         string   `mapstructure:"advertise" desc:"host:port that others dial. Empty: the listen address, which must then name one address."`
	DataDir           string   `mapstructure:"data_dir" desc:"Directory of the partitions and the agent's own records. Never shared, never copied to another node."`
	Controllers       []string `mapstructure:"controllers" desc:"host:port of the controllers, in any order."`
	FollowControllers bool     `mapstructure:"follow_controllers" desc:"Use the controllers that the cluster names as well, so that all of the list may be replaced one by one. Off where a node reaches controllers only by the listed addresses, such as a proxy's."`
	Zone              string   `mapstructure:"zone" desc:"Failure zone, such as a rack. Partitions of a topic are spread over zones. May be empty."`
	CapacityWeight    int      `mapstructure:"capacity_weight" desc:"How much the node should hold beside the others, 1 to 1000. A node of weight 3 gets three times the partitions of a node of weight 1."`
	Voter             string   `mapstructure:"voter" desc:"Name of the controller on the same host, which a decommission then removes too. May be empty."`

	HeartbeatInterval time.Duration `mapstructure:"heartbeat_interval" desc:"How often the node reports to the leader. At most a third of the controllers' lease_ttl."`
	RerouteAfter      time.Duration `mapstructure:"reroute_after" desc:"How long a record waits for a frozen partition before it goes to another one of its topic. Less than a usual freeze gives up the order of keys for nothing."`
	SegmentBytes      int64         `mapstructure:"segment_bytes" desc:"Size at which a log segment is sealed, in bytes. A move re-reads sealed segments before the freeze, the active one as it grows."`
	IngressBytes      int64         `mapstructure:"ingress_bytes" desc:"How much may wait in the ingress queue, in bytes, before produce is refused as overload. Its records are on disk."`
	MinDiskFree       int64         `mapstructure:"min_disk_free" desc:"Free disk space below which produce is refused, in bytes; so that partitions can still append. 0 never refuses."`
}

// DefaultConfig returns the value of every key that nobody sets.
func DefaultConfig() Config {
	return Config{
		Log:       Log{Level: "info", Format: "json"},
		Telemetry: Telemetry{Interval: 15 * time.Second},
		Controller: Controller{
			Listen:         "127.0.0.1:7400",
			DataDir:        "naradplane-data/controller",
			Peers:          []string{},
			Join:           []string{},
			LeaseTTL:       10 * time.Second,
			DeadAfter:      30 * time.Second,
			Tick:           100 * time.Millisecond,
			ElectionTicks:  10,
			HeartbeatTicks: 1,
			PlanInterval:   5 * time.Second,
		},
		Agent: Agent{
			Listen:            "127.0.0.1:7500",
			DataDir:           "naradplane-data/agent",
			Controllers:       []string{"127.0.0.1:7400"},
			FollowControllers: true,
			CapacityWeight:    1,
			HeartbeatInterval: 2 * time.Second,
			RerouteAfter:      20 * time.Millisecond,
			SegmentBytes:      64 << 20,
			IngressBytes:      1 << 30,
			MinDiskFree:       256 << 20,
		},
	}
}

// Peer is one of the first controllers.
type Peer struct {
	Name    cluster.ControllerName
	Address string
}

// ParsePeers splits a peers list. Faults are found by Validate; here a malformed element is kept with an
// empty address.
func (c Controller) ParsePeers() []Peer {
	out := make([]Peer, 0, len(c.Peers))
	for _, p := range c.Peers {
		name, addr, _ := strings.Cut(strings.TrimSpace(p), "=")
		out = append(out, Peer{Name: cluster.ControllerName(name), Address: addr})
	}
	return out
}

// key is one leaf of Config.
type key struct {
	name  string // dotted
	desc  string
	index []int // path for reflect's FieldByIndex
}

// section is the part before the dot; empty at the top.
func (k key) section() string {
	if i := strings.IndexByte(k.name, '.'); i >= 0 {
		return k.name[:i]
	}
	return ""
}

// env is the environment variable that sets k.
func (k key) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

// flag is the flag that sets k. Sections that a command shows alone drop their prefix.
func (k key) flag() string {
	name := k.name
	switch k.section() {
	case "controller", "agent":
		name = name[strings.IndexByte(name, '.')+1:]
	}
	return strings.NewReplacer(".", "-", "_", "-").Replace(name)
}

// keys lists every leaf in the order of the structs.
func keys() []key {
	var out []key
	walk(reflect.TypeFor[Config](), "", nil, &out)
	return out
}

func walk(t reflect.Type, prefix string, path []int, out *[]key) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := prefix + f.Tag.Get("mapstructure")
		at := append(append([]int(nil), path...), i)
		if f.Type.Kind() == reflect.Struct {
			walk(f.Type, name+".", at, out)
			continue
		}
		*out = append(*out, key{name: name, desc: f.Tag.Get("desc"), index: at})
	}
}

// Keys returns the dotted name of every key, in order.
func Keys() []string {
	var out []string
	for _, k := range keys() {
		out = append(out, k.name)
	}
	return out
}
