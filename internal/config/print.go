package config

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// tree builds a nested document of c in the structs' order, with comments when asked for.
func tree(c Config, comments bool) *yaml.Node {
	return structNode(reflect.ValueOf(c), comments)
}

func structNode(v reflect.Value, comments bool) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		k := &yaml.Node{Kind: yaml.ScalarNode, Value: f.Tag.Get("mapstructure")}
		if comments {
			k.HeadComment = wrap(f.Tag.Get("desc"), 96)
		}
		var value *yaml.Node
		if f.Type.Kind() == reflect.Struct {
			value = structNode(v.Field(i), comments)
		} else {
			value = leafNode(v.Field(i).Interface())
		}
		n.Content = append(n.Content, k, value)
	}
	return n
}

func leafNode(value any) *yaml.Node {
	n := &yaml.Node{}
	if d, ok := value.(time.Duration); ok {
		value = FormatDuration(d)
	}
	// Encoding plain scalars and string lists can't fail.
	_ = n.Encode(value)
	if n.Kind == yaml.SequenceNode {
		n.Style = yaml.FlowStyle
	}
	return n
}

// FormatDuration writes d as a person would: 1m, not 1m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func wrap(text string, width int) string {
	var b strings.Builder
	line := 0
	for _, w := range strings.Fields(text) {
		switch {
		case line == 0:
		case line+1+len(w) > width:
			b.WriteByte('\n')
			line = 0
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(w)
		line += len(w)
	}
	return b.String()
}

const sampleHead = `# Configuration of naradctl-plane: every key with its default.
#
# A value comes from the first of: command line flag, environment variable, this file, default. The variable
# of controller.lease_ttl is NARADPLANE_CONTROLLER_LEASE_TTL, its flag is --lease-ttl; lists are separated by
# commas there. Limits that change while the cluster runs are not here: naradctl-plane cluster settings.

`

// WriteSample writes the defaults as YAML, with a comment for each key.
func WriteSample(w io.Writer) error {
	if _, err := io.WriteString(w, sampleHead); err != nil {
		return err
	}
	return encodeYAML(w, tree(DefaultConfig(), true))
}

// WriteYAML writes c as YAML.
func WriteYAML(w io.Writer, c Config) error { return encodeYAML(w, tree(c, false)) }

func encodeYAML(w io.Writer, n *yaml.Node) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return err
	}
	return e.Close()
}

// WriteJSON writes c as JSON, with durations as strings.
func WriteJSON(w io.Writer, c Config) error {
	var doc map[string]any
	if err := tree(c, false).Decode(&doc); err != nil {
		return fmt.Errorf("convert the configuration: %w", err)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(doc)
}
