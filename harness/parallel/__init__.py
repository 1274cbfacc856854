"""A run over processes and machines: units of work, shards, who makes them, and the merger."""
