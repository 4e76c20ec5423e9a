"""A store in a plain directory.

`store` has the verbs, listings and file names; `writer` writes and deletes files; `folders` opens, makes and removes
folders; `files` is the interface to the operating system and its errors; `plain` is for files that other programs name.
"""

from limpet.store.directory.files import Files, FileStat, OsFiles, Pin, WalkFiles
from limpet.store.directory.store import DirectoryStore

__all__ = ["DirectoryStore", "FileStat", "Files", "OsFiles", "Pin", "WalkFiles"]
