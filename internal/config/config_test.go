package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "rewrite deploy/naradctl-plane.yaml")

// other returns a value for k that differs from its default, as the program and as a person would write it.
func other(t *testing.T, k key) (value any, text string) {
	t.Helper()
	switch d := reflect.ValueOf(DefaultConfig()).FieldByIndex(k.index).Interface().(type) {
	case bool:
		return !d, fmt.Sprint(!d)
	case string:
		return "other", "other"
	case int:
		return d + 3, fmt.Sprint(d + 3)
	case int64:
		return d + 3, fmt.Sprint(d + 3)
	case time.Duration:
		return d + 7*time.Millisecond, (d + 7*time.Millisecond).String()
	case []string:
		return []string{"a=b:1", "c=d:2"}, "a=b:1,c=d:2"
	default:
		t.Fatalf("no other value for the type of %s", k.name)
		return nil, ""
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fileWith is a configuration file that sets one key.
func fileWith(t *testing.T, name string, value any) string {
	t.Helper()
	if d, ok := value.(time.Duration); ok {
		value = d.String()
	}
	doc := map[string]any{name: value}
	if section, rest, ok := strings.Cut(name, "."); ok {
		doc = map[string]any{section: map[string]any{rest: value}}
	}
	b, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, string(b))
}

func flagsWith(t *testing.T, k key, text string) *pflag.FlagSet {
	t.Helper()
	section := k.section()
	if section != "agent" {
		section = "controller"
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs, section)
	if err := fs.Parse([]string{"--" + k.flag() + "=" + text}); err != nil {
		t.Fatal(err)
	}
	return fs
}

// TestC62EachKeyByFileEnvironmentAndFlag sets every key in each way, and sees nothing else change.
func TestC62EachKeyByFileEnvironmentAndFlag(t *testing.T) {
	base, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys() {
		value, text := other(t, k)
		want := base
		reflect.ValueOf(&want).Elem().FieldByIndex(k.index).Set(reflect.ValueOf(value))
		for way, src := range map[string]Sources{
			"file":        {File: fileWith(t, k.name, value)},
			"environment": {Environ: []string{k.env() + "=" + text}},
			"flag":        {Flags: flagsWith(t, k, text)},
		} {
			got, err := Load(src)
			if err != nil {
				t.Errorf("%s by %s: %v", k.name, way, err)
				continue
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s by %s (-want +got):\n%s", k.name, way, d)
			}
		}
	}
}

// TestC62OrderOfSources: flag over environment over file over default, for every key.
func TestC62OrderOfSources(t *testing.T) {
	for _, k := range keys() {
		value, text := other(t, k)
		def := reflect.ValueOf(DefaultConfig()).FieldByIndex(k.index).Interface()
		defText := strings.Trim(fmt.Sprint(def), "[]")
		if k.name == "controller.name" || k.name == "agent.node_id" {
			continue // an empty name becomes the host's
		}
		get := func(src Sources) any {
			t.Helper()
			c, err := Load(src)
			if err != nil {
				t.Fatalf("%s: %v", k.name, err)
			}
			return reflect.ValueOf(c).FieldByIndex(k.index).Interface()
		}
		src := Sources{File: fileWith(t, k.name, value), Environ: []string{k.env() + "=" + defText}}
		if got := get(src); !cmp.Equal(got, def) {
			t.Errorf("%s: environment %q under file: got %v", k.name, defText, got)
		}
		src.Flags = flagsWith(t, k, text)
		if got := get(src); !cmp.Equal(got, value) {
			t.Errorf("%s: flag %q under environment: got %v", k.name, text, got)
		}
	}
}

func TestC62UnknownKeysAreRefusedByName(t *testing.T) {
	for name, tc := range map[string]struct {
		src  Sources
		want string
	}{
		"top":         {Sources{File: writeFile(t, "lissten: x\n")}, "lissten"},
		"nested":      {Sources{File: writeFile(t, "controller:\n  lease_tll: 3s\n")}, "controller.lease_tll"},
		"environment": {Sources{Environ: []string{"NARADPLANE_AGENT_SEGMENT_BYTE=1"}}, "NARADPLANE_AGENT_SEGMENT_BYTE"},
		"bad value":   {Sources{File: writeFile(t, "controller:\n  lease_ttl: soon\n")}, "controller.lease_ttl"},
		"bad values": {Sources{Environ: []string{"NARADPLANE_CONTROLLER_TICK=abc", "NARADPLANE_INSECURE=perhaps"}},
			"configuration: controller.tick: invalid duration; insecure: cannot parse value as 'bool': strconv.ParseBool: invalid syntax (see: "},
		"not a file": {Sources{File: "/nonexistent/c.yaml"}, "/nonexistent/c.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(tc.src)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one naming %q", err, tc.want)
			}
		})
	}
}

func TestC62VariablesOfOthersPass(t *testing.T) {
	env := []string{"NARADPLANE_FAULTS=[]", "NARADPLANE_ADDR=x:1", "NARAD_OTHER=1", "PATH=/bin"}
	if _, err := Load(Sources{Environ: env}); err != nil {
		t.Error(err)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	c, err := Load(Sources{Environ: []string{"NARADPLANE_CONTROLLER_NAME=ctl-1", "NARADPLANE_AGENT_NODE_ID=node-1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ValidateController(); err != nil {
		t.Errorf("controller: %v", err)
	}
	if err := c.ValidateAgent(); err != nil {
		t.Errorf("agent: %v", err)
	}
}

// TestProfilesStayOnLoopback: they are served without credentials.
func TestProfilesStayOnLoopback(t *testing.T) {
	for listen, want := range map[string]bool{
		"": true, "127.0.0.1:6060": true, "localhost:0": true, "[::1]:6060": true, "0.0.0.0:6060": false, ":6060": false, "10.0.0.5:6060": false, "127.0.0.1": false,
	} {
		c := DefaultConfig()
		c.Controller.Name, c.Agent.NodeID = "c", "n"
		c.Debug.Listen = listen
		for daemon, err := range map[string]error{"controller": c.ValidateController(), "agent": c.ValidateAgent()} {
			if (err == nil) != want || (err != nil && !strings.Contains(err.Error(), "debug.listen")) {
				t.Errorf("%s with debug.listen %q: error %v, want none is %t", daemon, listen, err, want)
			}
		}
	}
}

// TestC66Addresses covers listen and advertised addresses of both daemons.
func TestC66Addresses(t *testing.T) {
	for _, tc := range []struct {
		listen, advertise string
		insecure          bool
		want              string // part of the error; empty for none
	}{
		{"127.0.0.1:7400", "", false, ""},
		{"[::1]:7400", "", false, ""},
		{"localhost:7400", "", false, ""},
		{"127.0.0.1:0", "", false, ""},
		{"10.0.0.5:7400", "", false, "insecure: true"},
		{"10.0.0.5:7400", "", true, ""},
		{"0.0.0.0:7400", "", true, "advertise"},
		{"[::]:7400", "", true, "advertise"},
		{":7400", "", true, "advertise"},
		{"0.0.0.0:7400", "0.0.0.0:7400", true, "unspecified"},
		{"0.0.0.0:7400", "10.0.0.5:7400", false, "insecure: true"},
		{"0.0.0.0:7400", "10.0.0.5:7400", true, ""},
		{"0.0.0.0:7400", "10.0.0.5:0", true, "not host:port"},
		{"10.0.0.5:7400", "127.0.0.1:7400", true, "loopback"},
		{"nonsense", "", true, "not host:port"},
		{"127.0.0.1:70000", "", false, "not host:port"},
	} {
		c, err := Load(Sources{})
		if err != nil {
			t.Fatal(err)
		}
		c.Insecure = tc.insecure
		c.Controller.Name, c.Agent.NodeID = "ctl-1", "node-1"
		c.Agent.Controllers = []string{"10.9.9.9:7400"}
		c.Controller.Listen, c.Controller.Advertise = tc.listen, tc.advertise
		c.Agent.Listen, c.Agent.Advertise = tc.listen, tc.advertise
		for daemon, err := range map[string]error{"controller": c.ValidateController(), "agent": c.ValidateAgent()} {
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s %+v: %v", daemon, tc, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("%s %+v: got error %v, want %q", daemon, tc, err, tc.want)
			}
		}
	}
}

// TestC66PeersNeverDialThemselves: no list may lead a daemon to itself.
func TestC66PeersNeverDialThemselves(t *testing.T) {
	for _, tc := range []struct {
		peers, join []string
		want        string
	}{
		{[]string{"ctl-1=127.0.0.1:7400", "ctl-2=127.0.0.1:7401"}, nil, ""},
		{[]string{"ctl-1=127.0.0.1:7402", "ctl-2=127.0.0.1:7401"}, nil, "others are to dial 127.0.0.1:7400"},
		{[]string{"ctl-1=127.0.0.1:7400", "ctl-2=127.0.0.1:7400"}, nil, "ctl-2"},
		{[]string{"ctl-3=127.0.0.1:7403", "ctl-2=127.0.0.1:7401"}, nil, "does not list this controller"},
		{[]string{"ctl-1=127.0.0.1:7400", "ctl-1=127.0.0.1:7401"}, nil, "twice"},
		{[]string{"127.0.0.1:7400"}, nil, "name=host:port"},
		{[]string{"ctl-1=127.0.0.1:7400"}, []string{"127.0.0.1:7401"}, "controller.join"},
		{nil, []string{"127.0.0.1:7400"}, "own address"},
		{nil, []string{"127.0.0.1:7401"}, ""},
	} {
		c, err := Load(Sources{})
		if err != nil {
			t.Fatal(err)
		}
		c.Controller.Name, c.Controller.Peers, c.Controller.Join = "ctl-1", tc.peers, tc.join
		err = c.ValidateController()
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%+v: %v", tc, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%+v: got error %v, want %q", tc, err, tc.want)
		}
	}
	c, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	c.Agent.NodeID, c.Agent.Controllers = "node-1", []string{c.Agent.Listen}
	if err := c.ValidateAgent(); err == nil || !strings.Contains(err.Error(), "own address") {
		t.Errorf("agent with itself as controller: got %v", err)
	}
}

func TestI10DeadAfterExceedsTwoLeases(t *testing.T) {
	c, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	c.Controller.Name = "ctl-1"
	c.Controller.DeadAfter = 2 * c.Controller.LeaseTTL
	if err := c.ValidateController(); err == nil || !strings.Contains(err.Error(), "controller.dead_after") {
		t.Errorf("dead_after of exactly two leases: got %v", err)
	}
}

func TestValidateReturnsEveryFault(t *testing.T) {
	c, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	c.Controller.Name, c.Controller.Tick, c.Log.Level, c.Controller.HeartbeatTicks = "NO!", 0, "loud", 0
	err = c.ValidateController()
	for _, k := range []string{"controller.name", "controller.tick", "log.level", "controller.heartbeat_ticks"} {
		if err == nil || !strings.Contains(err.Error(), k) {
			t.Errorf("no fault names %s in: %v", k, err)
		}
	}
}

// TestSampleIsGolden keeps the sample file and the structs alike, and loads it: it holds the defaults.
func TestSampleIsGolden(t *testing.T) {
	const path = "../../deploy/naradctl-plane.yaml"
	var b bytes.Buffer
	if err := WriteSample(&b); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b.String(), string(got)); d != "" {
		t.Errorf("deploy/naradctl-plane.yaml differs from the structs (go test ./internal/config -update) (-want +got):\n%s", d)
	}
	fromFile, err := Load(Sources{File: path})
	if err != nil {
		t.Fatal(err)
	}
	def, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(def, fromFile); d != "" {
		t.Errorf("the sample does not hold the defaults (-want +got):\n%s", d)
	}
}

func TestEveryKeyIsDescribed(t *testing.T) {
	for _, k := range keys() {
		if len(k.desc) < 10 || !strings.HasSuffix(k.desc, ".") {
			t.Errorf("%s: description %q is not a sentence", k.name, k.desc)
		}
	}
}

func TestWriteYAMLAndJSONLoadAgain(t *testing.T) {
	c, err := Load(Sources{Environ: []string{"NARADPLANE_CONTROLLER_DEAD_AFTER=1h", "NARADPLANE_AGENT_CONTROLLERS=a:1,b:2"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"yaml": func(b *bytes.Buffer) error { return WriteYAML(b, c) },
		"json": func(b *bytes.Buffer) error { return WriteJSON(b, c) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Load(Sources{File: writeFile(t, b.String())}) // JSON is YAML
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(c, again); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func FuzzLoadFile(f *testing.F) {
	f.Add("controller:\n  lease_ttl: 5s\n")
	f.Add("{")
	f.Add("agent: [1]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(Sources{File: writeFile(t, text)})
		if err == nil {
			// Whatever was read, checking it must not panic.
			_, _ = c.ValidateController(), c.ValidateAgent()
		}
	})
}

// FuzzEnviron: whatever an environment holds, it is read or refused by name.
func FuzzEnviron(f *testing.F) {
	f.Add("NARADPLANE_CONTROLLER_DEAD_AFTER", "1h")
	f.Add("NARADPLANE_AGENT_CONTROLLERS", "a:1,b:2,")
	f.Add("NARADPLANE_AGENT_SEGMENT_BYTES", "-9223372036854775808")
	f.Add("NARADPLANE_NOPE", "")
	f.Fuzz(func(t *testing.T, name, value string) {
		c, err := Load(Sources{Environ: []string{name + "=" + value}})
		if err == nil {
			_, _ = c.ValidateController(), c.ValidateAgent()
		}
	})
}
