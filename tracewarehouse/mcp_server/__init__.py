"""Answers an agent's questions about a warehouse, over the Model Context Protocol on standard input and output.

`tools` are the questions that can be asked, `answer` is what each of them gives, `server` speaks the protocol. Only
`server` needs the package mcp.
"""
