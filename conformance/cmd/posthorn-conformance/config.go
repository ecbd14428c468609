package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Config is the configuration of a run. Flags win over CONFORMANCE_* variables, those over the file.
type Config struct {
	// Target is the base URL of the implementation under test. Required.
	// --target, CONFORMANCE_TARGET, target.
	Target string `yaml:"target"`
	// Profiles to test. Empty means all.
	// --profile (repeatable, comma-separated), CONFORMANCE_PROFILE, profiles.
	Profiles []string `yaml:"profiles"`
	// Through is the client library to test through: sdk-go, or the command line of a program peer. Empty means
	// plain HTTP.
	// --through, CONFORMANCE_THROUGH, through.
	Through string `yaml:"through"`
	// Out is the directory of the reports. Default ./results.
	// --out, CONFORMANCE_OUT, out.
	Out string `yaml:"out"`
	// KnownFailing is a file of requirement ids, one a line. Empty means none.
	// --known-failing, CONFORMANCE_KNOWN_FAILING, knownFailing.
	KnownFailing string `yaml:"knownFailing"`
	// Capabilities that the target has. Empty means none.
	// --capability (repeatable, comma-separated), CONFORMANCE_CAPABILITY, capabilities.
	Capabilities []string `yaml:"capabilities"`
	// Tokens are one token of each role: read-only, write-only, read-write, admin. Empty means none.
	// --token ROLE=TOKEN (repeatable, comma-separated), CONFORMANCE_TOKENS, tokens (role: token).
	Tokens map[string]string `yaml:"tokens"`
	// SigningSecret signs HS256 tokens that the target accepts. Empty means none.
	// --signing-secret, CONFORMANCE_SIGNING_SECRET, signingSecret.
	SigningSecret string `yaml:"signingSecret"`
	// Listen is the address on which deliveries are taken, with the capability webhooks. Default a free port of 127.0.0.1.
	// --listen, CONFORMANCE_LISTEN, listen.
	Listen string `yaml:"listen"`
	// Advertise is the URL under which the target reaches Listen. Default http:// and the address listened on.
	// --advertise, CONFORMANCE_ADVERTISE, advertise.
	Advertise string `yaml:"advertise"`
}

// listFlag collects the values of a flag that may be repeated and holds comma-separated values.
type listFlag []string

func (l *listFlag) String() string { return strings.Join(*l, ",") }

func (l *listFlag) Set(text string) error {
	*l = append(*l, splitList(text)...)
	return nil
}

func splitList(text string) []string {
	var values []string
	for value := range strings.SplitSeq(text, ",") {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, value)
		}
	}
	return values
}

// loadConfig reads flags, environment and file.
func loadConfig(args []string, env func(string) string, stderr io.Writer) (Config, error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		given                  Config
		profiles, capabilities listFlag
		tokens                 listFlag
		file                   string
	)
	flags.StringVar(&file, "config", "", "YAML `file` with the options below")
	flags.StringVar(&given.Target, "target", "", "base `URL` of the implementation under test")
	flags.Var(&profiles, "profile", "`profile` to test; may be repeated (default all)")
	flags.StringVar(&given.Through, "through", "", "test through a client library: sdk-go, or the `command` of a program peer")
	flags.StringVar(&given.Out, "out", "", "`directory` of the reports (default ./results)")
	flags.StringVar(&given.KnownFailing, "known-failing", "", "`file` of requirement ids that are known to fail")
	flags.Var(&capabilities, "capability", "`capability` that the target has; may be repeated")
	flags.Var(&tokens, "token", "`ROLE=TOKEN`; may be repeated. Command lines are visible to others: prefer the variable or the file")
	flags.StringVar(&given.SigningSecret, "signing-secret", "", "`secret` of HS256 tokens that the target accepts; the same holds")
	flags.StringVar(&given.Listen, "listen", "", "`address` on which deliveries are taken (default a free port of 127.0.0.1)")
	flags.StringVar(&given.Advertise, "advertise", "", "`URL` under which the target reaches that address")
	if err := flags.Parse(args); err != nil {
		return Config{}, err //nolint:wrapcheck // the flag package's message is complete
	}
	if flags.NArg() > 0 {
		return Config{}, fmt.Errorf("run takes no arguments, but got %q", flags.Arg(0))
	}
	given.Profiles, given.Capabilities = profiles, capabilities
	var err error
	if given.Tokens, err = parseTokens(tokens); err != nil {
		return Config{}, fmt.Errorf("--token: %w", err)
	}

	fromEnv := Config{
		Target:       env("CONFORMANCE_TARGET"),
		Profiles:     splitList(env("CONFORMANCE_PROFILE")),
		Through:      env("CONFORMANCE_THROUGH"),
		Out:          env("CONFORMANCE_OUT"),
		KnownFailing: env("CONFORMANCE_KNOWN_FAILING"),
		Capabilities: splitList(env("CONFORMANCE_CAPABILITY")),

		SigningSecret: env("CONFORMANCE_SIGNING_SECRET"),
		Listen:        env("CONFORMANCE_LISTEN"),
		Advertise:     env("CONFORMANCE_ADVERTISE"),
	}
	if fromEnv.Tokens, err = parseTokens(splitList(env("CONFORMANCE_TOKENS"))); err != nil {
		return Config{}, fmt.Errorf("CONFORMANCE_TOKENS: %w", err)
	}
	if file == "" {
		file = env("CONFORMANCE_CONFIG")
	}
	fromFile, err := readConfig(file)
	if err != nil {
		return Config{}, err
	}
	config := given.or(fromEnv).or(fromFile).or(Config{Out: "results"})
	if config.Target == "" {
		return Config{}, errors.New("no target: give --target, CONFORMANCE_TARGET or target in the file")
	}
	return config, nil
}

func readConfig(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the tester's own file
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	var config Config
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

// or fills what c leaves empty from other.
func (c Config) or(other Config) Config {
	c.Target = first(c.Target, other.Target)
	c.Through = first(c.Through, other.Through)
	c.Out = first(c.Out, other.Out)
	c.KnownFailing = first(c.KnownFailing, other.KnownFailing)
	if len(c.Profiles) == 0 {
		c.Profiles = other.Profiles
	}
	if len(c.Capabilities) == 0 {
		c.Capabilities = other.Capabilities
	}
	if len(c.Tokens) == 0 {
		c.Tokens = other.Tokens
	}
	c.SigningSecret = first(c.SigningSecret, other.SigningSecret)
	c.Listen = first(c.Listen, other.Listen)
	c.Advertise = first(c.Advertise, other.Advertise)
	return c
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// parseTokens reads entries of the form role=token. Its errors do not quote them.
func parseTokens(entries []string) (map[string]string, error) {
	tokens := map[string]string{}
	for i, entry := range entries {
		role, token, ok := strings.Cut(entry, "=")
		if !ok || token == "" {
			return nil, fmt.Errorf("entry %d is not of the form role=token", i+1)
		}
		tokens[role] = token
	}
	return tokens, nil
}

// hidden stands for a secret in reports.
const hidden = "********"

// effective is the configuration as flags, for the report. A password in the target's URL, tokens and secrets are masked.
func (c Config) effective() map[string]string {
	values := map[string]string{"target": mask(c.Target), "out": c.Out}
	for name, value := range map[string]string{
		"profile":       strings.Join(c.Profiles, ","),
		"through":       c.Through,
		"known-failing": c.KnownFailing,
		"capability":    strings.Join(c.Capabilities, ","),
		"listen":        c.Listen,
		"advertise":     c.Advertise,
	} {
		if value != "" {
			values[name] = value
		}
	}
	var roles []string
	for _, role := range slices.Sorted(maps.Keys(c.Tokens)) {
		roles = append(roles, role+"="+hidden)
	}
	if len(roles) > 0 {
		values["token"] = strings.Join(roles, ",")
	}
	if c.SigningSecret != "" {
		values["signing-secret"] = hidden
	}
	return values
}

func mask(target string) string {
	parsed, err := url.Parse(target)
	if err != nil {
		return target
	}
	return parsed.Redacted()
}
