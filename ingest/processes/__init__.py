"""Work shared among processes, and what they do about memory."""
