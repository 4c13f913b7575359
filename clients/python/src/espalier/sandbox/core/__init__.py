"""What both clients share, without any input or output: requests and answers as plain data, ids, retries, streams.

`aio` and `sync` carry out what is decided here; nothing here sleeps, reads a clock or opens a socket.
"""
