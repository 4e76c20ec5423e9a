"""Operations on a whole index: verify and repair it, reshard it, purge tombstones, import existing record files."""
