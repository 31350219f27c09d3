"""Answers an agent's questions about a warehouse, over the Model Context Protocol on standard input and output.

`tools` has the questions that an agent can ask, `answer` the form of the answers, and `server` speaks the protocol.
Only `server` needs the package mcp.
"""
