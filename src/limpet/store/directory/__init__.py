"""A store in a plain directory.

`store` has the verbs, `writer` is how bytes reach the disk, `folders` opens and makes folders, `walk` lists, `paths`
names the files, `files` is the seam to the operating system, and `plain` is for files that other programs name.
"""

from limpet.store.directory.files import Files, FileStat, OsFiles, Pin, WalkFiles
from limpet.store.directory.store import DirectoryStore

__all__ = ["DirectoryStore", "FileStat", "Files", "OsFiles", "Pin", "WalkFiles"]
