-- Returns 0 if the shard can be claimed, else 1.
return taken() and 1 or 0
