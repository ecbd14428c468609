package app

import (
	"io"
	"log/slog"
)

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// newLogger makes the logger of a valid configuration.
func newLogger(cfg Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: logLevels[cfg.LogLevel]}
	if cfg.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
