"""The reader for asyncio."""
