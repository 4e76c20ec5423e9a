"""A fuzz of every kind of stored object: each is damaged in many ways and then read by all that read it in earnest."""
