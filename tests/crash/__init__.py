"""Real processes, killed with -9 and stopped past their TTL, on a directory and on SeaweedFS."""
