"""A store in a plain directory.

`store` has the verbs, lists, and names the files; `writer` is how bytes reach the disk, `folders` opens and makes
folders, `files` is the seam to the operating system and its errors, and `plain` is for files that other programs name.
"""

from limpet.store.directory.files import Files, FileStat, OsFiles, Pin, WalkFiles
from limpet.store.directory.store import DirectoryStore

__all__ = ["DirectoryStore", "FileStat", "Files", "OsFiles", "Pin", "WalkFiles"]
