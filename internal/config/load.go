package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// EnvPrefix begins the name of every environment variable that sets a key.
const EnvPrefix = "NARADPLANE_"

// notKeys are variables with the prefix that other parts of the program read.
var notKeys = []string{"NARADPLANE_FAULTS", "NARADPLANE_ADDR"}

// Sources says where values come from besides the defaults.
type Sources struct {
	// File is a YAML file; empty for none.
	File string
	// Flags were made by AddFlags; nil for none. Only flags that were set count.
	Flags *pflag.FlagSet
	// Environ lists "NAME=value"; os.Environ in the program.
	Environ []string
}

// Load merges the sources and fills what depends on the host. It does not call Validate: a daemon
// validates the part that it uses.
func Load(src Sources) (Config, error) {
	v := viper.New()
	def := reflect.ValueOf(DefaultConfig())
	env := map[string]string{}
	for _, e := range src.Environ {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			env[name] = value
		}
	}
	for _, k := range keys() {
		v.SetDefault(k.name, def.FieldByIndex(k.index).Interface())
	}
	if src.File != "" {
		v.SetConfigFile(src.File)
		v.SetConfigType("yaml")
		if err := v.ReadInConfig(); err != nil {
			return Config{}, fmt.Errorf("read configuration file %s: %w", src.File, err)
		}
	}
	// The environment and then the flags override: viper's Set is above all its other layers, and writing
	// them here in order keeps an explicit empty value apart from an absent one.
	for _, k := range keys() {
		if value, ok := env[k.env()]; ok {
			v.Set(k.name, value)
			delete(env, k.env())
		}
		if src.Flags == nil {
			continue
		}
		if f := src.Flags.Lookup(k.flag()); f != nil && f.Changed && owns(f, k) {
			v.Set(k.name, flagValue(f))
		}
	}
	if err := unknownEnv(env); err != nil {
		return Config{}, err
	}
	var c Config
	if err := v.UnmarshalExact(&c); err != nil {
		return Config{}, explain(src.File, err)
	}
	return c, c.resolve()
}

// unknownEnv refuses variables that look like a key and are none.
func unknownEnv(left map[string]string) error {
	var names []string
	for n := range left {
		if !slices.Contains(notKeys, n) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("unknown configuration keys in the environment: %s (see: naradctl-plane config show)",
		strings.Join(names, ", "))
}

// explain turns the decoder's words into ours.
func explain(file string, err error) error {
	msg := err.Error()
	where := "configuration"
	if file != "" {
		where = "configuration (file " + file + ")"
	}
	if strings.Contains(msg, "invalid keys") {
		return fmt.Errorf("%s: unknown keys: %s (see: naradctl-plane config show)", where, invalidKeys(msg))
	}
	if bad := badValues(msg); bad != "" {
		return fmt.Errorf("%s: %s (see: naradctl-plane config show)", where, bad)
	}
	return fmt.Errorf("%s: %w", where, err)
}

// badValues collects the decoder's "'section.key' what is wrong" lines; it quotes no value, which may be a secret's.
func badValues(msg string) string {
	var out []string
	for line := range strings.Lines(msg) {
		rest, ok := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "* "), "'")
		name, what, ok2 := strings.Cut(rest, "' ")
		if ok && ok2 {
			out = append(out, strings.ToLower(name)+": "+strings.TrimPrefix(what, "time: "))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// invalidKeys collects "'section' has invalid keys: a, b" lines as dotted names.
func invalidKeys(msg string) string {
	var out []string
	for line := range strings.Lines(msg) {
		before, after, ok := strings.Cut(line, " has invalid keys: ")
		if !ok {
			continue
		}
		prefix := ""
		if i, j := strings.IndexByte(before, '\''), strings.LastIndexByte(before, '\''); i >= 0 && j > i+1 {
			prefix = strings.ToLower(before[i+1:j]) + "."
		}
		for _, k := range strings.Split(strings.TrimSpace(after), ", ") {
			out = append(out, prefix+k)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// resolve fills names from the host.
func (c *Config) resolve() error {
	if c.Controller.Name != "" && c.Agent.NodeID != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return errors.Join(errors.New("set controller.name and agent.node_id"), err)
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	if c.Controller.Name == "" {
		c.Controller.Name = host
	}
	if c.Agent.NodeID == "" {
		c.Agent.NodeID = host
	}
	return nil
}
