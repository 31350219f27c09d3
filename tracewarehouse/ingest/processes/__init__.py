"""Shares work among processes, and tunes their use of memory."""
