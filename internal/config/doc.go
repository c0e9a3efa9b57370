// Package config holds the start-up configuration of the daemons: where to listen, where data lives, whom to
// dial, and the timings that must not change while a process runs.
//
// It does not hold what operators change while the cluster runs; that is cluster.Settings, in the
// replicated state.
//
// Rules:
//
//   - A key's value is the first of: command line flag, environment variable NARADPLANE_<KEY> with dots
//     as underscores, configuration file, default.
//   - A key that does not exist, in the file, is refused by name. So is an environment variable with the
//     prefix that names no key.
//   - Load returns every fault at once, each with its key and what is allowed.
//   - An address that others can reach needs `insecure: true`, since the daemons do not encrypt; an
//     unspecified listen address needs an explicit advertised one.
//   - Nothing is read again after the start.
//
// The sample deploy/naradctl-plane.yaml is generated from the same structs by WriteSample, and a test keeps
// the two alike. This is the only package that uses viper.
//
// Files: config.go (the structs and defaults), load.go (sources and order), flags.go (flags from the structs),
// validate.go (faults), print.go (sample and effective values).
package config
