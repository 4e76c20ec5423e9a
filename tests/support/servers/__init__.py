"""Real servers for the tests, on free ports of 127.0.0.1, with their data in memory.

Each module holds one context manager: `SeaweedFS`, `CephRGW`, `Azurite`, `RcloneS3`. `shared` runs one of them for a
whole test run, however many pytest-xdist workers it has.
"""
