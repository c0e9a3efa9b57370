package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/naradctl/naradctl-plane/client"
	"github.com/naradctl/naradctl-plane/internal/config"
)

// version is set by the linker in released binaries.
var version = "0.1.0-dev"

// app is what all commands share. It is filled by the flags before a command runs.
type app struct {
	stdout, stderr io.Writer
	output         string
	addrs          []string
	timeout        time.Duration
	timeoutSet     bool
	tls            config.TLS
	joining        bool           // a new controller asks, not a person
	creds          *credentials   // nil for plain HTTP
	client         *client.Client // made by the first call
}

// execute runs the program and returns its exit code. Errors are printed once, here.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	defer a.close()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s%s\n", errorWord(err), strings.TrimSpace(err.Error()), whatExists(cmd, err))
	}
	return exitCode(err)
}

// whatExists names the command that lists what could have been meant by a name that does not exist.
func whatExists(cmd *cobra.Command, err error) string {
	if exitCode(err) != codeNotFound {
		return ""
	}
	list := ""
	switch words := strings.Fields(cmd.CommandPath()); {
	case words[1] != "cluster":
		list = "topic list"
	case words[2] == "controllers":
		list = "cluster controllers list"
	case words[2] == "move" || words[2] == "plan":
		list = "cluster moves; naradctl-plane topic list; naradctl-plane cluster members"
	default:
		list = "cluster members"
	}
	return " (see: naradctl-plane " + list + ")"
}

// errorWord tells a refusal, which is an answer, from a fault.
func errorWord(err error) string {
	if exitCode(err) == codeRefused {
		return "refused"
	}
	return "error"
}

const rootLong = `naradctl-plane moves single-owner partitions between hosts without losing a record.

Try it on this host, with nothing to configure:

  naradctl-plane dev                                # controllers and agents in one process
  naradctl-plane topic create orders --partitions 6
  naradctl-plane produce orders hello world
  naradctl-plane consume orders --group me --ack
  naradctl-plane cluster status
  naradctl-plane cluster decommission node-1 --wait

Exit codes: 0 done, 1 error, 2 usage, 3 refused by a guard, 4 timed out waiting,
5 not found, 6 no leader.`

// close ends what the command has open.
func (a *app) close() {
	if a.client != nil {
		a.client.Close()
	}
}

// root returns the whole command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "naradctl-plane",
		Short:         "Move single-owner partitions between hosts without losing a record",
		Long:          rootLong,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.prepare(cmd)
		},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var bad *pflag.InvalidValueError
		if errors.As(err, &bad) {
			f := bad.GetFlag()
			err = fmt.Errorf("--%s: %q is no %s; it is the %s", f.Name, bad.GetValue(), f.Value.Type(), f.Usage)
		}
		return withCode(codeUsage, fmt.Errorf("%w (see: %s --help)", err, cmd.CommandPath()))
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		a.controllerCommand(), a.agentCommand(), a.devCommand(),
		a.clusterCommand(), a.topicCommand(), a.produceCommand(), a.consumeCommand(),
		a.configCommand(), a.versionCommand(),
	)
	usageErrors(root)
	return root
}

// clientFlags adds the flags of commands that ask the daemons.
func (a *app) clientFlags(cmd *cobra.Command) {
	addrs := []string{"127.0.0.1:7400"}
	if env := os.Getenv("NARADPLANE_ADDR"); env != "" {
		addrs = strings.Split(env, ",")
	}
	f := cmd.PersistentFlags()
	f.StringSliceVar(&a.addrs, "addr", addrs, "host:port of controllers, comma-separated; each is tried (environment: NARADPLANE_ADDR)")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "limit of the whole command; commands that wait or follow have none unless it is given")
	a.credentialsFlags(f.StringVar)
	a.outputFlag(cmd)
}

func (a *app) outputFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "table, wide, json or yaml; json is the API's message")
}

// prepare checks the shared flags.
func (a *app) prepare(cmd *cobra.Command) error {
	if f := cmd.Flags().Lookup("timeout"); f != nil {
		a.timeoutSet = f.Changed
		if a.timeout <= 0 {
			return withCode(codeUsage, errors.New("--timeout must be positive"))
		}
	}
	if cmd.Flags().Lookup("output") != nil && !slices.Contains([]string{"table", "wide", "json", "yaml"}, a.output) {
		return withCode(codeUsage, fmt.Errorf("--output %q: must be table, wide, json or yaml", a.output))
	}
	if cmd.Flags().Lookup("addr") != nil {
		return a.dialCredentials()
	}
	return nil
}

// usageErrors makes wrong arguments and unknown sub-commands end with the usage code. A group without a
// sub-command prints its help.
func usageErrors(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	for _, c := range cmd.Commands() {
		usageErrors(c)
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return withCode(codeUsage, fmt.Errorf("%w (usage: %s)", err, cmd.UseLine()))
			}
			return nil
		}
	}
	if cmd.RunE == nil && cmd.HasSubCommands() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			hint := ""
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				hint = "; did you mean " + strings.Join(s, " or ") + "?"
			}
			return withCode(codeUsage, fmt.Errorf("unknown command %q for %s%s (see: %s --help)",
				args[0], cmd.CommandPath(), hint, cmd.CommandPath()))
		}
	}
}

// versionCommand prints the version.
func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, "naradctl-plane", version)
			return err
		},
	}
}
