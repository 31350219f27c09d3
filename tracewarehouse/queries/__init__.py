"""Asks one query that may only read, and prints or writes its rows."""
