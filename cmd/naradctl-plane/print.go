package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"gopkg.in/yaml.v3"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// wide reports whether tables show every column.
func (a *app) wide() bool { return a.output == "wide" }

// print writes m as -o asks: as the API's message, or as a table that the function prints.
func (a *app) print(m proto.Message, table func(w io.Writer)) error {
	switch a.output {
	case "json":
		return writeJSON(a.stdout, m)
	case "yaml":
		return writeYAML(a.stdout, m)
	}
	tw := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	table(tw)
	return tw.Flush()
}

// encode returns m as JSON with all fields, without the random spaces that protojson adds.
func encode(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return out.Bytes(), nil
}

func writeJSON(w io.Writer, m proto.Message) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(w)
	return err
}

// writeJSONLine is for streams: one message on each line.
func writeJSONLine(w io.Writer, m proto.Message) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// streamed writes one message of a stream as -o asks: JSON on a line, or a YAML document. It does nothing, and says
// so, when a table is wanted.
func (a *app) streamed(m proto.Message) (bool, error) {
	switch a.output {
	case "json":
		return true, writeJSONLine(a.stdout, m)
	case "yaml":
		if _, err := io.WriteString(a.stdout, "---\n"); err != nil {
			return true, err
		}
		return true, writeYAML(a.stdout, m)
	}
	return false, nil
}

// writeYAML writes the JSON form as YAML, in the message's order of fields.
func writeYAML(w io.Writer, m proto.Message) error {
	b, err := encode(m)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	blockStyle(&n)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return err
	}
	return e.Close()
}

// blockStyle drops JSON's style; strings that would read as something else are quoted by the encoder.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// row writes a table's row.
func row(w io.Writer, cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = fmt.Sprint(c)
		if text[i] == "" {
			text[i] = "-"
		}
	}
	fmt.Fprintln(w, strings.Join(text, "\t"))
}

// size is for people: powers of 1024.
func size(n uint64) string { return humanize.IBytes(n) }

// partitionName is topic/index, with the topic's id when its name is not known.
func partitionName(p *planev1.Partition) string {
	if p.GetTopic() == "" {
		return fmt.Sprintf("#%d/%d", p.GetTopicId(), p.GetIndex())
	}
	return fmt.Sprintf("%s/%d", p.GetTopic(), p.GetIndex())
}

// duration is d rounded for people; empty when absent.
func duration(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	v := d.AsDuration()
	switch {
	case v >= time.Minute:
		return v.Round(time.Second).String()
	case v >= time.Second:
		return v.Round(100 * time.Millisecond).String()
	}
	return v.Round(10 * time.Microsecond).String()
}

// timestamp is RFC 3339 in UTC; empty when absent.
func timestamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// orDash is s, or a dash for nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// yes is "yes" or "-".
func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}

// enumWord turns NODE_STATUS_ALIVE into alive.
func enumWord(e fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(e.String(), prefix)), "_", " ")
}

func plural(n int, one string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}
