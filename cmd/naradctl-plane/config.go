package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/naradctl/naradctl-plane/internal/config"
)

const configFlagHelp = "YAML file with configuration keys"

// loadConfig reads the configuration of a daemon's command.
func loadConfig(cmd *cobra.Command, file string) (config.Config, error) {
	c, err := config.Load(config.Sources{File: file, Flags: cmd.Flags(), Environ: os.Environ()})
	if err != nil {
		return c, withCode(codeUsage, err)
	}
	return c, nil
}

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Show configuration keys and their values"}
	show := &cobra.Command{
		Use:   "show",
		Short: "Print every key with its default, or with --effective what is in effect",
		Long: `Print every key with its default and what it is for; or with --effective the value that a daemon
would use, from the file and the environment. The sub-commands take the daemon's flags as well and check
the values like the daemon does.`,
		Example: `  naradctl-plane config show > naradctl-plane.yaml
  naradctl-plane config show --effective --config /etc/naradctl-plane.yaml
  naradctl-plane config show agent --effective --listen 10.0.0.7:7500 --insecure`,
		Args: cobra.NoArgs,
	}
	a.outputFlag(show)
	file, effective := "", false
	show.PersistentFlags().StringVar(&file, "config", "", configFlagHelp)
	show.PersistentFlags().BoolVar(&effective, "effective", false, "the values in effect instead of the defaults")
	show.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.showConfig(cmd, file, effective, nil)
	}
	for _, section := range []string{"controller", "agent"} {
		sub := &cobra.Command{
			Use:     section,
			Short:   "The same with the flags and checks of naradctl-plane " + section,
			Example: "  naradctl-plane config show " + section + " --effective --listen 127.0.0.1:7777",
			Args:    cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.showConfig(cmd, file, effective, func(c config.Config) error {
					if section == "controller" {
						return c.ValidateController()
					}
					return c.ValidateAgent()
				})
			},
		}
		config.AddFlags(sub.Flags(), section)
		show.AddCommand(sub)
	}
	cmd.AddCommand(show)
	return cmd
}

func (a *app) showConfig(cmd *cobra.Command, file string, effective bool, check func(config.Config) error) error {
	c := config.DefaultConfig()
	if effective {
		var err error
		if c, err = loadConfig(cmd, file); err != nil {
			return err
		}
		if check != nil {
			if err := check(c); err != nil {
				return withCode(codeUsage, err)
			}
		}
	}
	switch {
	case a.output == "json":
		return config.WriteJSON(a.stdout, c)
	case effective:
		return config.WriteYAML(a.stdout, c)
	}
	return config.WriteSample(a.stdout)
}
