"""Serves the pages of `tw serve`: a warehouse's runs, comparisons, metrics and SQL, read-only, to this machine."""
