"""The reader for threads: `io` by hand, the rest made of `aio` by `generate.py`."""
