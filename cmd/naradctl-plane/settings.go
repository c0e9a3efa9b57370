package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func (a *app) settingsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "Read and change limits while the cluster runs",
		Long: `Limits that change while the cluster runs. They are replicated and reach every agent within a
heartbeat; moves in flight obey them at once. What each means: docs/operations.md.`,
	}
	get := &cobra.Command{
		Use:     "get",
		Short:   "Print all settings",
		Example: "  naradctl-plane cluster settings get",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.GetSettingsResponse, error) {
				return c.GetSettings(ctx, &planev1.GetSettingsRequest{})
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { settingsTable(w, m.GetSettings()) })
		},
	}
	set := &cobra.Command{
		Use:   "set KEY=VALUE…",
		Short: "Change settings",
		Example: `  naradctl-plane cluster settings set copy_rate_per_node=50MiB max_in_flight_moves=4
  naradctl-plane cluster settings set rebalance_paused=true
  naradctl-plane cluster settings set force_promote_after=0s   # never promote`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			patch, err := parseSettings(args)
			if err != nil {
				return withCode(codeUsage, err)
			}
			req := &planev1.UpdateSettingsRequest{Settings: patch, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.UpdateSettingsResponse, error) {
				return c.UpdateSettings(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { settingsChanged(w, m.GetPrevious(), m.GetSettings()) })
		},
	}
	cmd.AddCommand(get, set)
	return cmd
}

func settingsTable(w io.Writer, s *planev1.Settings) {
	m := s.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		row(w, string(fields.Get(i).Name()), settingText(m, fields.Get(i)))
	}
}

// settingsChanged prints what is different, old → new.
func settingsChanged(w io.Writer, old, s *planev1.Settings) {
	before, m := old.ProtoReflect(), s.ProtoReflect()
	fields := m.Descriptor().Fields()
	changed := false
	for i := range fields.Len() {
		f := fields.Get(i)
		if was, now := settingText(before, f), settingText(m, f); was != now {
			changed = true
			fmt.Fprintf(w, "%s: %s → %s\n", f.Name(), was, now)
		}
	}
	if !changed {
		fmt.Fprintln(w, "nothing was changed: the settings were so already")
	}
}

// settingText is a setting with its unit.
func settingText(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
	switch {
	case f.Kind() == protoreflect.MessageKind:
		if d, ok := m.Get(f).Message().Interface().(*durationpb.Duration); ok && m.Has(f) {
			return d.AsDuration().String()
		}
		return "-"
	case isBytes(f) && m.Get(f).Uint() == 0:
		return "unlimited"
	case f.Name() == "copy_rate_per_node":
		return size(m.Get(f).Uint()) + "/s"
	case isBytes(f):
		return size(m.Get(f).Uint())
	case strings.HasSuffix(string(f.Name()), "_percent"):
		return fmt.Sprintf("%d%%", m.Get(f).Uint())
	}
	return fmt.Sprint(m.Get(f).Interface())
}

// isBytes reports whether a field counts bytes.
func isBytes(f protoreflect.FieldDescriptor) bool { return f.Kind() == protoreflect.Uint64Kind }

// parseSettings turns KEY=VALUE arguments into a patch. The message's own fields are the keys, so a new
// setting needs no code here.
func parseSettings(args []string) (*planev1.Settings, error) {
	s := &planev1.Settings{}
	m := s.ProtoReflect()
	fields := m.Descriptor().Fields()
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		f := fields.ByName(protoreflect.Name(k))
		if !ok || f == nil {
			return nil, fmt.Errorf("%q is not KEY=VALUE; the keys are %s", arg, settingNames(fields))
		}
		value, err := parseSetting(f, v)
		if err != nil {
			return nil, err
		}
		m.Set(f, value)
	}
	return s, nil
}

func parseSetting(f protoreflect.FieldDescriptor, v string) (protoreflect.Value, error) {
	switch f.Kind() {
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(v)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%s: %q is not true or false", f.Name(), v)
		}
		return protoreflect.ValueOfBool(b), nil
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%s: %q is not a whole number", f.Name(), v)
		}
		return protoreflect.ValueOfUint32(uint32(n)), nil
	case protoreflect.Uint64Kind:
		n, err := humanize.ParseBytes(v)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%s: %q is not a size, such as 4MiB", f.Name(), v)
		}
		return protoreflect.ValueOfUint64(n), nil
	default:
		d, err := time.ParseDuration(v)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%s: %q is not a duration, such as 250ms", f.Name(), v)
		}
		return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), nil
	}
}

func settingNames(fields protoreflect.FieldDescriptors) string {
	var names []string
	for i := range fields.Len() {
		names = append(names, string(fields.Get(i).Name()))
	}
	return strings.Join(names, ", ")
}
