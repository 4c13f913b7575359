"""The client for threads. Made of `aio` by `clients/python/generate.py`, but for `io.py`."""
