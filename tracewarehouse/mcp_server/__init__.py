"""Answers an agent's questions about a warehouse, over the Model Context Protocol on standard input and output.

`answer` has the form of questions and answers, `tools` the questions that an agent can ask, `description` the one about
what SQL can read, and `server` speaks the protocol. Only `server` needs the package mcp.
"""
