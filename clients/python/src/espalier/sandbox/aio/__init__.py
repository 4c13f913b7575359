"""The client for asyncio. `sync` is made of this folder by `clients/python/generate.py`, but for `io.py`."""
