"""The version of the package; the build reads it here, and reading it costs no look at what is installed."""

VERSION = "0.1.0"
