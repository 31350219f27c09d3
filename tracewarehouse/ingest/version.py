"""States the version of the package; the build reads it here, and no lookup of installed packages is needed."""

VERSION = "0.1.0"
