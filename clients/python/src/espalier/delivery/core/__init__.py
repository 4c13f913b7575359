"""What both readers share, without any input or output: requests, and which groups are held and trained.

`aio` and `sync` carry out what is decided here; nothing here sleeps, reads a clock or opens a socket.
"""
